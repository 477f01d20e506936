//! Looking up before a lock, so that nobody waits for the index's disk at the lock.

use dedupfs_base::Result;

/// Lookups before the caller asks the index under the lock: a checkpoint takes far longer than one.
const LOOKUPS_MAX: usize = 4;

/// Takes a lock once `answers` are current. If a checkpoint of the index came between, `look_up` asks it again without the lock. If one comes
/// each time, the lock is taken all the same: the caller must ask whether the answers are current.
pub(super) fn lock_with<L, A>(
    lock: impl Fn() -> L,
    answers: &mut A,
    is_current: impl Fn(&A) -> bool,
    mut look_up: impl FnMut(&mut A) -> Result<()>,
) -> Result<L> {
    for _ in 0..LOOKUPS_MAX {
        let locked = lock();
        if is_current(answers) {
            return Ok(locked);
        }
        drop(locked);
        look_up(answers)?;
    }
    Ok(lock())
}

#[cfg(test)]
mod tests {
    use dedupfs_base::EngineError;
    use dedupfs_sync::Mutex;

    use super::*;

    /// The index was asked under the lock if a checkpoint came between: all writers waited for its disk.
    #[test]
    fn regression_no_answer_is_looked_up_under_the_lock() {
        let lock = Mutex::new(());
        for stale in 0..=LOOKUPS_MAX + 1 {
            let mut looked_up = 0;
            let guard = lock_with(
                || lock.lock(),
                &mut looked_up,
                |so_far| *so_far >= stale,
                |so_far| {
                    assert!(lock.try_lock().is_some(), "nobody holds it");
                    *so_far += 1;
                    Ok(())
                },
            );
            assert!(guard.is_ok() && lock.try_lock().is_none(), "it is held");
            drop(guard);
            assert_eq!(looked_up, stale.min(LOOKUPS_MAX));
        }
        let failed = lock_with(|| lock.lock(), &mut (), |()| false, |()| Err(EngineError::NoSpace));
        assert!(failed.is_err() && lock.try_lock().is_some());
    }
}
