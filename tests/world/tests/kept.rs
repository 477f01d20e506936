//! Kept plans, and the options for them.

use std::fs;
use std::process::Command;

/// Runs the program. Returns whether it succeeds, and what it prints.
fn world(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_world")).args(arguments).output().expect("starts");
    let printed = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&printed).into_owned())
}

#[test]
fn kept_plans_notice_their_canaries_and_pass_without() {
    let (succeeds, printed) = world(&["--kept"]);
    assert!(succeeds, "{printed}");
}

#[test]
fn wrong_input_is_refused_by_name() {
    let directory = std::env::temp_dir().join(format!("world-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("is made");
    let path = directory.join("plan.json");
    let file = path.to_str().expect("is text");
    for (content, expected) in [
        (None, "cannot be read"),
        (Some("{"), "is no plan"),
        (Some(r#"{"plan": {}, "keeps": 1}"#), "unknown field `keeps`"),
        (Some(r#"{"finds": "Parrot", "plan": {}}"#), "Parrot is unknown: the canaries are"),
    ] {
        if let Some(content) = content {
            fs::write(&path, content).expect("is written");
        }
        let (succeeds, printed) = world(&["--plan", file]);
        assert!(!succeeds && printed.contains(expected) && printed.contains(file), "{printed}");
    }
    fs::remove_dir_all(&directory).expect("is removed");

    for (arguments, expected) in [
        (&["--shrink", "0"][..], "seed 0 passes: there is nothing to shrink"),
        (&["--shrink", "0", "--keep", "../plan"], "is no name of a plan"),
        (&["--shrink", "0", "--plan", file], "cannot be used with"),
        (&["--keep", "plan"], "--shrink"),
    ] {
        let (succeeds, printed) = world(arguments);
        assert!(!succeeds && printed.contains(expected), "{printed}");
    }
}
