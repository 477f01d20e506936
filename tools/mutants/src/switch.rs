/// The mutant that this process runs, and the mutants that it has reached. Woven into the copy of `dedupfs-sync`; no
/// other program has it.
pub mod mutant {
    use std::io::Write as _;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering};

    static ACTIVE: OnceLock<u32> = OnceLock::new();
    static SEEN: OnceLock<Option<std::fs::File>> = OnceLock::new();
    /// As in `build.rs`: one mark for each mutant of a build, by its number.
    const MUTANTS: usize = 1 << 14;
    static MARKS: [AtomicBool; MUTANTS] = [const { AtomicBool::new(false) }; MUTANTS];

    /// Whether this process runs the mutant of this number.
    pub fn is(number: u32) -> bool {
        if !MARKS[number as usize].load(Ordering::Relaxed) {
            see(number);
        }
        *ACTIVE.get_or_init(|| std::env::var("DEDUPFS_MUTANT").ok().and_then(|text| text.parse().ok()).unwrap_or(0)) == number
    }

    #[cold]
    fn see(number: u32) {
        if MARKS[number as usize].swap(true, Ordering::Relaxed) {
            return;
        }
        let file = SEEN.get_or_init(|| {
            let path = std::env::var_os("DEDUPFS_MUTANTS_SEEN")?;
            std::fs::OpenOptions::new().append(true).create(true).open(path).ok()
        });
        if let Some(mut file) = file.as_ref() {
            let _ = file.write_all(format!("{number}\n").as_bytes());
        }
    }
}
