//! Damage of every file of a pool, at every place: the pool's answer is then right, or an error.
//!
//! Each case damages one file of a copy of a pool. Then the pool is opened, asked for everything, checked and closed.
//! The test judges:
//!
//! - content, names, attributes, extended attributes and links are right or give an input/output error;
//! - no thread panics, nothing hangs, memory stays within bounds;
//! - a pool that does not open gives advice;
//! - damage at one place of a container costs no more than a slot, and no name or attribute of a live entry;
//! - damage of an index costs nothing once it is made anew;
//! - the check finds everything unreadable.
//!
//! Continuous integration tries a sample, chosen by seed; `tools/flip-soak.sh` tries every byte. A failing case is
//! printed with the command that repeats it.

mod damage;
mod image;
mod memory;
mod model;
mod plan;
mod verdict;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use damage::{Case, Damage};
use image::Image;
use plan::{Depth, EVERYTHING, SAMPLE, cases};

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

/// A case that takes longer hangs. Cases take milliseconds.
const HANG: Duration = Duration::from_secs(120);
/// Memory that each of the concurrent cases may allocate.
const CASE_BYTES_MAX: usize = 64 << 20;
/// Memory that the process may use: all cases, and the images that they damage.
const PROCESS_BYTES_MAX: usize = 384 << 20;
/// Cases at once.
const RUNNERS: usize = 2;

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Ends the process if a case takes too long: a hang has no other verdict.
fn watch(running: &Mutex<BTreeMap<usize, (Instant, String)>>, done: &AtomicBool) {
    while !done.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(50));
        let running = running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, case)) = running.values().find(|(since, _)| since.elapsed() > HANG) {
            eprintln!("HANGS: {case}");
            std::process::abort();
        }
    }
}

/// Runs all cases; returns the failures.
fn run(images: &[Image], cases: &[Case]) -> Vec<String> {
    let next = AtomicUsize::new(0);
    let (done, running) = (AtomicBool::new(false), Mutex::new(BTreeMap::new()));
    let failures = Mutex::new(Vec::new());
    let tally = Mutex::new(verdict::Tally::default());
    memory::take_peak_bytes();
    std::thread::scope(|scope| {
        scope.spawn(|| watch(&running, &done));
        let runners: Vec<_> = (0..RUNNERS)
            .map(|runner| {
                let (next, running, failures, tally) = (&next, &running, &failures, &tally);
                scope.spawn(move || {
                    while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let image = images.iter().find(|image| image.name == case.image).expect("is made");
                        running
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .insert(runner, (Instant::now(), case.to_string()));
                        let started = Instant::now();
                        let outcome = verdict::judge(image, case);
                        running.lock().unwrap_or_else(PoisonError::into_inner).remove(&runner);
                        let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
                        match outcome {
                            Ok(verdict) => tally.add(case, &verdict, started.elapsed()),
                            Err(failure) => {
                                let failure = format!("{failure}\n    {}", repeat(case));
                                println!("FAILED: {failure}");
                                failures.lock().unwrap_or_else(PoisonError::into_inner).push(failure);
                            }
                        }
                    }
                })
            })
            .collect();
        for runner in runners {
            runner.join().expect("a runner ends");
        }
        done.store(true, Ordering::Relaxed);
    });
    println!("{}", tally.into_inner().unwrap_or_else(PoisonError::into_inner));
    let peak = memory::take_peak_bytes();
    let resident = memory::resident_peak_bytes();
    println!("at most {} MiB allocated at once by {RUNNERS} cases, {} MiB used", peak >> 20, resident >> 20);
    let mut failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    if peak > RUNNERS * CASE_BYTES_MAX {
        failures.push(format!("{peak} bytes were allocated at once"));
    }
    if resident > PROCESS_BYTES_MAX {
        failures.push(format!("{resident} bytes of memory were used"));
    }
    failures
}

/// Returns the command that repeats a case on the same bytes.
fn repeat(case: &Case) -> String {
    format!("DEDUPFS_FLIPS_IMAGES={} DEDUPFS_FLIPS_CASE='{case}' cargo test --test flips", saved().display())
}

fn saved() -> std::path::PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("flips-{}", std::process::id()))
}

fn conclude(images: &[Image], failures: &[String]) {
    if failures.is_empty() {
        return;
    }
    for image in images {
        image.save(&saved().join(image.name));
    }
    panic!(
        "{} cases failed; the first:\n{}",
        failures.len(),
        failures.iter().take(20).cloned().collect::<Vec<_>>().join("\n")
    );
}

fn depth() -> Depth {
    match std::env::var("DEDUPFS_FLIPS").as_deref() {
        Ok("everything") => EVERYTHING,
        _ => SAMPLE,
    }
}

#[test]
fn damage_gives_right_answers_or_errors() {
    verdict::listen_for_panics();
    let mut images = [Image::closed(), Image::crashed()];
    if let Some(from) = std::env::var_os("DEDUPFS_FLIPS_IMAGES") {
        images.iter_mut().for_each(|image| image.load(&Path::new(&from).join(image.name)));
    }
    if let Ok(case) = std::env::var("DEDUPFS_FLIPS_CASE") {
        let case: Case = case.parse().expect("names a case");
        let failures = run(&images, &[case]);
        assert!(failures.is_empty(), "{}", failures.join("\n"));
        return;
    }
    for image in &images {
        let files = image.disks.files();
        let bytes: u64 = files.iter().map(|(_, _, len)| len).sum();
        println!("{}: {} files, {bytes} bytes, {} bytes of content", image.name, files.len(), image.content_bytes);
        verdict::sound(image);
    }
    let seed = number("DEDUPFS_FLIPS_SEED", 1);
    let (part, parts) = (number("DEDUPFS_FLIPS_PART", 0), number("DEDUPFS_FLIPS_PARTS", 1).max(1));
    let only = std::env::var("DEDUPFS_FLIPS_ONLY").unwrap_or_default();
    let all: Vec<Case> = images
        .iter()
        .flat_map(|image| cases(image, depth(), seed))
        .filter(|case| case.to_string().contains(&only))
        .enumerate()
        .filter(|(number, _)| *number as u64 % parts == part)
        .map(|(_, case)| case)
        .collect();
    if parts == 1 && only.is_empty() {
        assert_enough(&images, &all);
    }
    conclude(&images, &run(&images, &all));
}

/// Checks that the cases include every file and enough of every kind of damage.
fn assert_enough(images: &[Image], cases: &[Case]) {
    let count = |matches: fn(&Damage) -> bool| cases.iter().filter(|case| matches(&case.damage)).count();
    let counts = [
        ("flips", 5000, count(|damage| matches!(damage, Damage::Flip { .. }))),
        ("sectors of zeros", 250, count(|damage| matches!(damage, Damage::ZeroSector { .. }))),
        ("swapped blocks", 100, count(|damage| matches!(damage, Damage::SwapBlocks { .. }))),
        ("lost writes", 60, count(|damage| matches!(damage, Damage::OldBlock { .. } | Damage::OldFile))),
        ("truncations", 300, count(|damage| matches!(damage, Damage::Truncate { .. }))),
        ("extensions", 100, count(|damage| matches!(damage, Damage::Extend { .. }))),
        ("removals", 100, count(|damage| matches!(damage, Damage::Remove))),
        ("files of another pool", 100, count(|damage| matches!(damage, Damage::OtherPool))),
    ];
    for (what, at_least, found) in counts {
        println!("{found} {what}");
        assert!(found >= at_least, "{found} {what}, expected at least {at_least}");
    }
    for image in images {
        for (root, path, _) in image.disks.files() {
            let of_file =
                cases.iter().filter(|case| case.image == image.name && case.root == root && case.path == path);
            assert!(of_file.count() > 20, "{path} is hardly tried");
        }
    }
}
