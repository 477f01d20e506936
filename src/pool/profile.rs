//! Times by component, as `dedupfs-stats --profile` shows them.

use dedupfs_store::profile::{Component, Figure, Mark};
use serde::{Deserialize, Serialize};

/// Where the time has gone since the mount, summed over all threads.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Profile {
    /// Milliseconds by the clock since the mount.
    pub elapsed_ms: f64,
    /// Sum of the time of `components`.
    pub busy_ms: f64,
    /// Sum of the time of `waits`.
    pub waited_ms: f64,
    /// Components that were at work, the longest time first.
    pub components: Vec<ComponentTime>,
    /// The same of waits.
    pub waits: Vec<ComponentTime>,
}

/// The time of one component. Time of another one within it is that one's alone.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ComponentTime {
    /// Its name.
    pub name: String,
    /// How often it was at work, or a thread waited. Work that goes on is not counted yet.
    pub times: u64,
    /// Milliseconds.
    pub total_ms: f64,
    /// Microseconds each time.
    pub mean_us: f64,
    /// Its part of all work, or of all waits, from 0 to 1.
    pub share: f64,
}

impl Profile {
    /// Returns the times since `mark`.
    pub(super) fn of(mark: &Mark) -> Self {
        let figures: Vec<_> = mark.figures().filter(|(_, figure)| figure.times > 0).collect();
        let (waits, components): (Vec<_>, Vec<_>) = figures.into_iter().partition(|(of, _)| of.is_wait());
        let ((components, busy_ms), (waits, waited_ms)) = (listed(components), listed(waits));
        Self { elapsed_ms: mark.elapsed().as_secs_f64() * 1e3, busy_ms, waited_ms, components, waits }
    }
}

/// Returns the list in order, and its sum in milliseconds.
fn listed(mut figures: Vec<(Component, Figure)>) -> (Vec<ComponentTime>, f64) {
    figures.sort_by_key(|(_, figure)| std::cmp::Reverse(figure.total_ns));
    let all_ns = figures.iter().map(|(_, figure)| figure.total_ns).sum::<u64>() as f64;
    let one = |&(component, Figure { times, total_ns }): &(Component, Figure)| {
        let ns = total_ns as f64;
        ComponentTime {
            name: component.name().to_owned(),
            times,
            total_ms: ns / 1e6,
            mean_us: ns / 1e3 / times as f64,
            share: if total_ns == 0 { 0.0 } else { ns / all_ns },
        }
    };
    (figures.iter().map(one).collect(), all_ns / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_sum_and_the_longest_comes_first() {
        let figure = |times, total_ns| Figure { times, total_ns };
        let (list, sum_ms) =
            listed(vec![(Component::Chunking, figure(4, 1_000_000)), (Component::Compression, figure(2, 3_000_000))]);
        assert_eq!(sum_ms, 4.0);
        let told: Vec<_> = list.iter().map(|one| (&*one.name, one.times, one.mean_us, one.share)).collect();
        assert_eq!(told, [("compression", 2, 1500.0, 0.75), ("chunking", 4, 250.0, 0.25)]);
        let (idle, sum_ms) = listed(vec![(Component::Chunking, figure(1, 0))]);
        assert_eq!((idle[0].share, sum_ms), (0.0, 0.0));
    }
}
