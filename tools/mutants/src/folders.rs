//! The folders whose mutants are tried, each with the tests that try them.

/// A folder with its tests.
pub struct Folder {
    /// Its name on the command line and in tables.
    pub name: &'static str,
    /// Its sources, as patterns of cargo-mutants.
    pub files: &'static [&'static str],
    /// Its tests, by their suites.
    pub suites: &'static [Suite],
}

/// A program of tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Suite {
    /// The package.
    pub package: &'static str,
    /// Cargo's choice of the program.
    pub target: &'static [&'static str],
    /// The tests whose names begin with one of these.
    pub prefixes: &'static [&'static str],
}

const fn unit(package: &'static str) -> Suite {
    Suite { package, target: &["--lib"], prefixes: &[""] }
}

const fn engine(prefixes: &'static [&'static str]) -> Suite {
    Suite { package: "dedupfs", target: &["--lib"], prefixes }
}

/// Shared code under many schedules of its threads: of these folders only `sections.rs` of `dedup` is in it.
const SCHEDULES: Suite = whole(&["--test", "schedules"]);

const fn whole(target: &'static [&'static str]) -> Suite {
    Suite { package: "dedupfs", target, prefixes: &[""] }
}

/// All folders, in the order of their turns.
pub const FOLDERS: [Folder; 6] = [
    Folder { name: "index", files: &["index/src/**"], suites: &[unit("dedupfs-index")] },
    // The rest of `store/sync` is the world, which tries itself.
    Folder { name: "store", files: &["store/src/**", "store/sync/src/*.rs"], suites: &[unit("dedupfs-store")] },
    Folder {
        name: "commit",
        files: &["src/durability/commit/**"],
        suites: &[engine(&[
            "durability::commit",
            "tests::counting",
            "tests::held",
            "tests::reclaim",
            "tests::space",
            "tests::memory",
            // Commits export.
            "tests::export::space",
            "durability::export::damaged_tests",
        ])],
    },
    Folder {
        name: "reclaim",
        files: &["src/upkeep/reclaim/**"],
        suites: &[engine(&[
            "upkeep::reclaim",
            "tests::reclaim",
            "tests::space",
            "tests::scrub::quarantine",
            "tests::scrub::beside",
            // A run ends with an export.
            "tests::export::life::an_emptied_pool",
        ])],
    },
    Folder {
        name: "dedup",
        files: &["src/content/dedup/**"],
        suites: &[
            unit("dedupfs-content"),
            SCHEDULES,
            whole(&["--test", "clones"]),
            whole(&["--test", "compare"]),
            engine(&[
                "tests::counting",
                "tests::reclaim",
                "tests::memory",
                "tests::scrub::quarantine",
                "tests::scrub::beside",
            ]),
        ],
    },
    Folder {
        name: "export",
        files: &["src/durability/export/**"],
        suites: &[engine(&["durability::export", "tests::export"])],
    },
];
