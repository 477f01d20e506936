//! Forms in which plans write values of other crates.

use std::time::Duration;

use dedupfs_sync::step::Step;
use dedupfs_sync::world::Habits;
use serde::{Deserialize, Serialize};

/// Habits; each field is the one of this name.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Habits", deny_unknown_fields)]
pub struct HabitsForm {
    switch_one_in: u32,
    step_ns: u64,
    stall_one_in: u32,
    rerank_one_in: u32,
    #[serde(default)]
    linger_one_in: u32,
    #[serde(default)]
    last_one_in: u32,
    #[serde(default, with = "crate::name::names")]
    last_step: Step,
    processors: usize,
}

/// Durations as whole nanoseconds.
pub mod nanoseconds {
    use serde::{Deserializer, Serializer};

    use super::{Deserialize, Duration, Serialize};

    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        u64::try_from(duration.as_nanos()).map_err(serde::ser::Error::custom)?.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_nanos)
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::{Life, Plan};

    #[test]
    fn a_plan_that_is_written_and_read_is_the_same() {
        for plan in (0..500).map(Plan::new) {
            let read: Plan = serde_json::from_str(&serde_json::to_string(&plan).expect("is written")).expect("is read");
            assert_eq!(format!("{read:?}"), format!("{plan:?}"));
        }
    }

    #[test]
    fn a_field_that_a_plan_lacks_has_its_default() {
        let read: Plan =
            serde_json::from_str(r#"{"seed": 7, "clients": 2, "lives": [{"steps": 3}]}"#).expect("is read");
        let plan = Plan {
            write_bytes_max: 30_000,
            seed: 7,
            clients: 2,
            lives: vec![Life { steps: 3, ..Life::default() }],
            ..Plan::default()
        };
        assert_eq!(format!("{read:?}"), format!("{plan:?}"));
    }

    #[test]
    fn what_is_unknown_is_refused_by_name() {
        for (plan, name) in [
            (r#"{"clinets": 2}"#, "clinets"),
            (r#"{"lives": [{"habits": {"prozessors": 2}}]}"#, "prozessors"),
            (r#"{"lives": [{"fate": "Burnt"}]}"#, "Burnt"),
        ] {
            let error = serde_json::from_str::<Plan>(plan).expect_err("is refused").to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
