//! Tests of the primitives in worlds, over many seeds.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::primitives::channel::{Either, RecvTimeoutError, TrySendError, bounded, recv_either};
use super::primitives::{Condvar, Mutex, OnceLock, RwLock, atomically, clock, thread, thread_local};
use super::{End, Habits, hash, kill, run, within};

const SEEDS: u64 = 50;

fn habits(seed: u64) -> Habits {
    Habits { switch_one_in: 1 + (seed % 3) as u32, rerank_one_in: (seed % 5) as u32, ..Habits::default() }
}

/// Runs the life under several seeds; all must end well.
fn all_end(life: impl Fn() + Clone + Send + 'static) {
    for seed in 0..SEEDS {
        let end = run(seed, habits(seed), life.clone());
        assert!(matches!(end, End::Ended), "seed {seed}: {end:?}");
    }
}

fn spawn(run: impl FnOnce() + Send + 'static) -> thread::JoinHandle<()> {
    thread::Builder::new().name("test".to_owned()).spawn(run).expect("starts")
}

#[test]
fn a_mutex_excludes_and_hours_pass_at_once() {
    all_end(|| {
        let counts = Arc::new(Mutex::new((0_u32, 0_u32)));
        let begun = clock::Instant::now();
        let tasks: Vec<_> = (0..3)
            .map(|_| {
                let counts = counts.clone();
                spawn(move || {
                    for _ in 0..5 {
                        let mut counts = counts.lock();
                        let before = counts.0;
                        thread::sleep(Duration::from_secs(600));
                        counts.0 = before + 1;
                        counts.1 += 1;
                    }
                })
            })
            .collect();
        tasks.into_iter().for_each(|task| task.join().expect("ends"));
        assert_eq!(*counts.lock(), (15, 15));
        assert!(begun.elapsed() >= Duration::from_secs(9000), "{:?}", begun.elapsed());
    });
}

#[test]
fn locks_can_be_waited_for_within_a_time() {
    all_end(|| {
        let lock = Arc::new((Mutex::new(()), RwLock::new(())));
        let held = (lock.0.lock(), lock.1.read());
        let other = lock.clone();
        let task = spawn(move || {
            assert!(other.0.try_lock().is_none());
            assert!(other.0.try_lock_for(Duration::from_millis(5)).is_none());
            assert!(other.1.try_write_for(Duration::from_millis(5)).is_none());
            // The writer that gave up does not hold readers back.
            drop(other.1.read());
            assert!(other.0.try_lock_for(Duration::from_secs(5)).is_some());
        });
        thread::sleep(Duration::from_secs(1));
        drop(held);
        task.join().expect("ends");
    });
}

#[test]
fn a_waiting_writer_holds_new_readers_back() {
    all_end(|| {
        let lock = Arc::new(RwLock::new(0));
        let reader = lock.read();
        let writer = {
            let lock = lock.clone();
            spawn(move || *lock.write() = 1)
        };
        thread::sleep(Duration::from_secs(1));
        assert!(lock.try_read().is_none());
        drop(reader);
        assert_eq!(*lock.read(), 1, "the writer came first");
        writer.join().expect("ends");
    });
}

#[test]
fn a_condition_is_notified_or_timed_out() {
    all_end(|| {
        let pair = Arc::new((Mutex::new(false), Condvar::new()));
        let mut is_set = pair.0.lock();
        assert!(pair.1.wait_for(&mut is_set, Duration::from_secs(3)).timed_out());
        let other = pair.clone();
        let task = spawn(move || {
            *other.0.lock() = true;
            other.1.notify_one();
        });
        pair.1.wait_while(&mut is_set, |is_set| !*is_set);
        drop(is_set);
        task.join().expect("ends");
    });
}

#[test]
fn a_lost_wake_up_and_a_circle_of_locks_are_told() {
    let waits_for_ever = || {
        let (lock, condition) = (Mutex::new(()), Condvar::new());
        condition.wait(&mut lock.lock());
    };
    assert!(matches!(run(1, Habits::default(), waits_for_ever), End::Failed(why) if why.contains("all threads wait")));
    let circle = || {
        let locks = Arc::new((Mutex::new(()), Mutex::new(())));
        let other = locks.clone();
        let task = spawn(move || drop((other.1.lock(), other.0.lock())));
        drop((locks.0.lock(), locks.1.lock()));
        task.join().expect("ends");
    };
    let ends: Vec<_> = (0..SEEDS).map(|seed| run(seed, habits(0), circle)).collect();
    let failed = ends.iter().filter(|end| matches!(end, End::Failed(_))).count();
    assert!((1..SEEDS as usize).contains(&failed), "{failed} of {SEEDS}");
}

#[test]
fn queues_keep_order_bound_and_ends() {
    all_end(|| {
        let (sender, receiver) = bounded(2);
        assert_eq!(receiver.recv_timeout(Duration::from_millis(1)), Err(RecvTimeoutError::Timeout));
        assert!(sender.try_send(0).is_ok() && sender.try_send(1).is_ok());
        assert_eq!(sender.try_send(2), Err(TrySendError::Full(2)));
        let task = spawn(move || (2..20).for_each(|number| sender.send(number).expect("is received")));
        assert!(receiver.iter().eq(0..20));
        task.join().expect("ends");
        assert_eq!(receiver.recv_timeout(Duration::from_secs(1)), Err(RecvTimeoutError::Disconnected));

        let (one, numbers) = bounded(1);
        let (other, words) = bounded(1);
        let task = spawn(move || {
            thread::sleep(Duration::from_millis(1));
            other.send("word").expect("is received");
            // Passes only when the receiver waits again.
            thread::sleep(Duration::from_secs(3600));
            one.send(1).expect("is received");
        });
        assert!(matches!(recv_either(&numbers, &words), Ok(Either::Other("word"))));
        assert!(numbers.recv() == Ok(1) && recv_either(&numbers, &words).is_err());
        task.join().expect("ends");
    });
}

#[test]
fn a_value_is_made_once_though_its_maker_waits() {
    all_end(|| {
        let (cell, made) = (Arc::new(OnceLock::new()), Arc::new(AtomicU64::new(0)));
        let tasks: Vec<_> = (0..3)
            .map(|_| {
                let (cell, made) = (cell.clone(), made.clone());
                spawn(move || {
                    let value = cell.get_or_init(|| {
                        thread::sleep(Duration::from_secs(1));
                        made.fetch_add(1, Ordering::Relaxed)
                    });
                    assert_eq!(*value, 0);
                })
            })
            .collect();
        tasks.into_iter().for_each(|task| task.join().expect("ends"));
        assert_eq!(made.load(Ordering::Relaxed), 1);
    });
}

thread_local! {
    static OWN: Cell<u32> = const { Cell::new(7) };
}

#[test]
fn each_task_has_its_own_values_and_each_life_new_ones() {
    all_end(|| {
        assert_eq!(OWN.get(), 7);
        OWN.set(8);
        spawn(|| assert_eq!(OWN.get(), 7)).join().expect("ends");
        assert_eq!(OWN.get(), 8);
    });
}

#[test]
fn a_killed_life_runs_no_destructor() {
    struct Tells(Arc<AtomicBool>);
    impl Drop for Tells {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    for seed in 0..SEEDS {
        let told = Arc::new(AtomicBool::new(false));
        let in_life = told.clone();
        let end = run(seed, habits(seed), move || {
            let _main = Tells(in_life.clone());
            let waiting = in_life.clone();
            let _task = spawn(move || {
                let _other = Tells(waiting);
                thread::sleep(Duration::from_secs(3600));
            });
            thread::sleep(Duration::from_secs(1));
            // Also amid a step that no other task interrupts.
            atomically(|| kill());
        });
        assert!(matches!(end, End::Killed), "seed {seed}: {end:?}");
        assert!(!told.load(Ordering::Relaxed));
    }
}

#[test]
fn a_seed_happens_the_same_way_twice() {
    let happens = |seed: u64| {
        let on_a_new_thread = move || {
            let life = || {
                let lock = Arc::new(Mutex::new(0));
                let task = |lock: Arc<Mutex<u32>>| move || (0..50).for_each(|_| *lock.lock() += 1);
                let tasks: Vec<_> = (0..4).map(|_| spawn(task(lock.clone()))).collect();
                tasks.into_iter().for_each(|task| task.join().expect("ends"));
            };
            assert!(matches!(run(seed, Habits::default(), life), End::Ended));
            hash()
        };
        std::thread::spawn(on_a_new_thread).join().expect("ends")
    };
    assert_eq!(happens(1), happens(1));
    assert_ne!(happens(1), happens(2));
}

#[test]
fn what_does_not_end_in_time_fails_the_world() {
    let life = |lasts_secs: u64| {
        run(1, Habits::default(), move || {
            within(Duration::from_secs(9), "a nap", || thread::sleep(Duration::from_secs(5)));
            within(Duration::from_secs(9), "a sleep", || thread::sleep(Duration::from_secs(lasts_secs)));
        })
    };
    assert!(matches!(life(8), End::Ended));
    let End::Failed(reason) = life(10) else { panic!("nobody noticed") };
    assert!(reason.contains("a sleep does not end in time"), "{reason}");
}
