use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use super::Sections;

/// Reclaiming that waits for a slow writer must not block the other writers.
#[test]
fn regression_a_barrier_keeps_nobody_out() {
    let (sections, is_past) = (Sections::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let slow = sections.enter(|| ());
        let (send, waits) = channel();
        let (sections, is_past) = (&sections, &is_past);
        let waiting = scope.spawn(move || {
            send.send(()).expect("somebody listens");
            sections.barrier();
            is_past.store(true, Ordering::SeqCst);
        });
        waits.recv().expect("it starts");
        // Gives the barrier time to begin waiting.
        std::thread::sleep(Duration::from_millis(50));
        drop(sections.enter(|| panic!("nobody keeps sections out")));
        assert!(!is_past.load(Ordering::SeqCst), "a section that was entered before goes on");
        drop(slow);
        waiting.join().expect("it ends");
    });
    assert!(is_past.load(Ordering::SeqCst));
    sections.barrier();
    assert_eq!(sections.between(|| 7), 7);
    drop(sections.enter(|| panic!("nobody is between sections")));
}

#[test]
fn a_panic_between_sections_lets_them_go_on() {
    let sections = Sections::default();
    let action = std::panic::AssertUnwindSafe(|| sections.between(|| panic!("on purpose")));
    assert!(std::panic::catch_unwind(action).is_err());
    drop(sections.enter(|| panic!("nobody is between sections")));
}
