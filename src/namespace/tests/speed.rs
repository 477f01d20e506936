//! Rates in memory, printed; run with `cargo test --release -- --ignored --nocapture speed`.

use std::time::Instant;

use super::*;

fn rate(what: &str, count: u32, run: impl FnOnce()) {
    let started = Instant::now();
    run();
    println!("{what:<24} {:>10.0}/s", f64::from(count) / started.elapsed().as_secs_f64());
}

#[test]
#[ignore = "a measurement, not a test"]
fn rates() {
    const COUNT: u32 = 200_000;
    let disk = disk();
    let namespace = Namespace::open(&disk, 256 << 20).unwrap();
    let dirs: Vec<Ino> = (0..200)
        .map(|number| namespace.make(ROOT_INO, format!("d{number}").as_bytes(), &directory(1)).unwrap().ino)
        .collect();
    let place = |number: u32| (dirs[(number / 1000) as usize], format!("file-{number}"));
    let lookup = |number| namespace.lookup(place(number).0, place(number).1.as_bytes()).unwrap().unwrap().0;
    rate("make", COUNT, || {
        (0..COUNT).for_each(|number| {
            namespace.make(place(number).0, place(number).1.as_bytes(), &file(2)).unwrap();
        });
    });
    rate("lookup + inode, memory", COUNT, || {
        (0..COUNT).for_each(|number| {
            namespace.inode_shared(lookup(number)).unwrap().unwrap();
        });
    });
    rate("set_root", COUNT, || {
        (0..COUNT).for_each(|number| {
            namespace.set_root(u64::from(number) + 202, chunk(1), 100, 100, None, None).unwrap();
        });
    });
    rate("commit, inodes", COUNT, || {
        namespace.save().unwrap();
    });
    rate("lookup + inode, store", COUNT, || {
        (0..COUNT).for_each(|number| {
            namespace.inode_shared(lookup(number)).unwrap().unwrap();
        });
    });
    rate("read_directory", COUNT, || {
        assert_eq!(dirs.iter().map(|&dir| namespace.list(dir, 256).len() as u32).sum::<u32>(), COUNT);
    });
    rate("unlink + drop_orphan", COUNT, || {
        (0..COUNT).for_each(|number| {
            let ino = namespace.unlink(place(number).0, place(number).1.as_bytes(), at(3)).unwrap().ino;
            namespace.drop_orphan(ino).unwrap();
        });
    });
    rate("commit, removals", COUNT, || {
        namespace.save().unwrap();
    });
}
