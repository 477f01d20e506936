//! Faults of disks as plans have them. Those of the engine count while they run, and cannot be written down.

use dedupfs_store::device::faulty::{Fault, FaultPlan, Operation};
use serde::{Deserialize, Serialize};

use crate::name::Name;

/// Operations of a disk that fail. Made as a [`FaultPlan`] is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedFault {
    fault: Name<Fault>,
    /// Kinds of operations; `None`: those that the fault concerns anyway.
    operations: Option<Vec<Name<Operation>>>,
    /// A part of the paths.
    path_part: String,
    /// The first that fails among all of these operations, from 0 on.
    pub position: u64,
    /// Whether all later ones fail, too.
    pub is_lasting: bool,
}

impl PlannedFault {
    pub fn new(fault: Fault, position: u64) -> Self {
        Self { fault: Name(fault), operations: None, path_part: String::new(), position, is_lasting: false }
    }

    pub fn on(self, operations: &[Operation]) -> Self {
        Self { operations: Some(operations.iter().copied().map(Name).collect()), ..self }
    }

    pub fn path_contains(self, part: &str) -> Self {
        Self { path_part: part.to_owned(), ..self }
    }

    pub fn lasting(self) -> Self {
        Self { is_lasting: true, ..self }
    }

    /// The fault for a device.
    pub fn plan(&self) -> FaultPlan {
        let plan = FaultPlan::new(self.fault.0, self.position).path_contains(&self.path_part);
        let plan = match &self.operations {
            Some(operations) => plan.on(&operations.iter().map(|name| name.0).collect::<Vec<_>>()),
            None => plan,
        };
        if self.is_lasting { plan.lasting() } else { plan }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planned_fault_is_the_one_of_the_engine() {
        let syncs = [Operation::Sync, Operation::SyncDirectory];
        for (planned, plan) in [
            (PlannedFault::new(Fault::NoSpace, 7), FaultPlan::new(Fault::NoSpace, 7)),
            (
                PlannedFault::new(Fault::Io, 1).on(&syncs).path_contains("export").lasting(),
                FaultPlan::new(Fault::Io, 1).on(&syncs).path_contains("export").lasting(),
            ),
        ] {
            assert_eq!(format!("{:?}", planned.plan()), format!("{plan:?}"));
        }
    }
}
