//! Writers that compare, beside reclaiming, on a disk that rots between mounts: every file reads as it was written, and
//! the counts are right. `DEDUPFS_ROTTING_SEEDS` sets the number of runs.

use std::sync::atomic::{AtomicBool, Ordering};

use dedupfs::check::CheckOptions;

use super::*;

/// Damages a quarter of the slots of a directory's files.
fn damage(device: &Arc<dyn Device>, directory: &str, state: &mut u64) {
    for entry in device.list(directory).expect("lists") {
        let path = format!("{directory}/{}", entry.name);
        let mut bytes = device.read_file(&path, 1 << 30).expect("reads");
        for slot in bytes.chunks_mut(256 << 10) {
            *state ^= *state << 13;
            *state ^= *state >> 7;
            *state ^= *state << 17;
            if state.is_multiple_of(4) && slot.len() > 2000 {
                let at = (*state >> 8) as usize % (slot.len() - 1000);
                slot[at..at + 100].iter_mut().for_each(|byte| *byte ^= 0x5a);
            }
        }
        let file = device.open(&path, OpenMode::Write).expect("opens");
        file.write_at(&bytes, 0).expect("writes");
        file.sync().expect("syncs");
    }
}

/// Writes one worker's files of a round, and removes a third of them at once. Returns the remaining names with their
/// contents.
fn work(pool: &Pool, contents: &[Vec<u8>], round: usize, worker: usize) -> Vec<(String, usize)> {
    let mut names = Vec::new();
    for number in 0..6 {
        let which = (worker * 3 + number * 5 + round) % contents.len();
        let name = format!("r{round}w{worker}n{number}");
        write(pool, &name, &contents[which]);
        if number % 3 == 1 {
            pool.service().unlink(ROOT_INO, name.as_bytes()).expect("unlinks");
        } else {
            names.push((name, which));
        }
    }
    names
}

fn run(seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let device = formatted();
    let base = content(seed, 1_500_000);
    let contents: Vec<Vec<u8>> = (0..8)
        .map(|number| {
            [&content(100 + number, 3000 * number as usize)[..], &base[..200_000 * (number as usize % 4 + 1)]].concat()
        })
        .collect();
    for round in 0..6 {
        let pool = open(&device, COMPARING, false);
        let mut names = Vec::new();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reclaiming = scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // Damage may fail one run.
                    let _ = pool.reclaim(&WHOLE, &NoProgress);
                }
            });
            let (pool, contents) = (&pool, &contents);
            let workers: Vec<_> =
                (0..3).map(|worker| scope.spawn(move || work(pool, contents, round, worker))).collect();
            let outcomes: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
            stop.store(true, Ordering::Relaxed);
            reclaiming.join().expect("reclaims");
            names.extend(outcomes.into_iter().flat_map(|outcome| outcome.expect("works")));
        });
        pool.sync().expect("syncs");
        for (name, which) in &names {
            assert!(read(&pool, name).as_ref() == Some(&contents[*which]), "{name} of seed {seed}");
        }
        let findings = pool
            .check(&CheckOptions { read_data: true, ..CheckOptions::default() }, &NoProgress)
            .expect("checks")
            .findings;
        // Damaged containers stay until all their chunks are stored again. Copies of recipes rot, too: mounts and
        // scrubs write them anew.
        let is_rot =
            |finding: &String| ["container", "export on the data root: "].iter().any(|of| finding.starts_with(of));
        let wrong: Vec<_> = findings.iter().filter(|finding| !is_rot(finding)).collect();
        assert!(wrong.is_empty(), "seed {seed}, round {round}: {wrong:?}");
        for (name, _) in &names {
            pool.service().unlink(ROOT_INO, name.as_bytes()).expect("unlinks");
        }
        close(pool);
        damage(&device, "containers", &mut state);
        damage(&device, "recipes", &mut state);
    }
}

#[test]
fn regression_comparing_beside_reclaiming_on_a_disk_that_rots() {
    let seeds = std::env::var("DEDUPFS_ROTTING_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    (1..=seeds).for_each(run);
}
