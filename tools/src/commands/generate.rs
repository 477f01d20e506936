//! `dedupfs generate`: man pages and shell completions, from what `--help` is made of.
//!
//! One page for each program, each command of `dedupfs` (`dedupfs-mount.8`) and each helper; one file for each program and
//! shell, under the names by which the shells find them.

use std::fs;
use std::io;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use dedupfs::control::Failure;

use crate::args::helpers::{FsckHelper, MkfsHelper, MountHelper, UmountHelper};
use crate::args::{Dedupfs, Gc, GenerateArgs, Stats};
use crate::exit;

/// Section of the manual: commands for administration.
const SECTION: &str = "8";

/// A page whose text is another page's.
const SAME_PAGES: [(&str, &str); 1] = [("mount.fuse.dedupfs", "mount.dedupfs")];

/// All programs and helpers.
#[must_use]
pub fn programs() -> Vec<Command> {
    vec![
        Dedupfs::command(),
        Stats::command(),
        Gc::command(),
        MountHelper::command(),
        UmountHelper::command(),
        MkfsHelper::command(),
        FsckHelper::command(),
    ]
}

/// Writes what is asked for.
pub fn run(args: &GenerateArgs) -> Result<u8, Failure> {
    if let Some(directory) = &args.man {
        in_directory(directory, man_pages)?;
    }
    for (shell, directory) in [(Shell::Bash, &args.bash), (Shell::Zsh, &args.zsh), (Shell::Fish, &args.fish)] {
        if let Some(directory) = directory {
            in_directory(directory, |directory| completions(shell, directory))?;
        }
    }
    Ok(exit::OK)
}

fn in_directory(directory: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), Failure> {
    fs::create_dir_all(directory)
        .and_then(|()| write(directory))
        .map_err(|error| Failure::failed(format!("cannot write to {}: {error}", directory.display())))
}

fn man_pages(directory: &Path) -> io::Result<()> {
    for mut program in programs() {
        // So that commands know their whole name.
        program.build();
        page(&program, directory)?;
        for command in
            program.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help")
        {
            page(command, directory)?;
        }
    }
    for (name, of) in SAME_PAGES {
        fs::write(directory.join(format!("{name}.{SECTION}")), format!(".so man{SECTION}/{of}.{SECTION}\n"))?;
    }
    Ok(())
}

fn page(command: &Command, directory: &Path) -> io::Result<()> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone())
        .section(SECTION)
        .source(format!("dedupfs {}", env!("CARGO_PKG_VERSION")))
        .manual("dedupfs")
        .render(&mut text)?;
    let name = command.get_display_name().unwrap_or(command.get_name());
    fs::write(directory.join(format!("{name}.{SECTION}")), text)
}

fn completions(shell: Shell, directory: &Path) -> io::Result<()> {
    for mut program in programs() {
        let name = program.get_name().to_owned();
        let file = match shell {
            Shell::Zsh => format!("_{name}"),
            Shell::Fish => format!("{name}.fish"),
            _ => name.clone(),
        };
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut program, name, &mut text);
        fs::write(directory.join(file), text)?;
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::helper;

    #[test]
    fn every_program_command_and_helper_has_a_page() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        run(&GenerateArgs { man: Some(root.join("man")), bash: None, zsh: None, fish: None }).unwrap();
        let page = |name: &str| fs::read_to_string(root.join(format!("man/{name}.8"))).unwrap();
        let commands = Dedupfs::command();
        let commands = commands.get_subcommands().filter(|command| !command.is_hide_set());
        for command in commands {
            let text = page(&format!("dedupfs-{}", command.get_name()));
            for option in command.get_arguments().filter(|option| !option.is_hide_set()) {
                if let Some(long) = option.get_long() {
                    let shown = long.replace('-', "\\-");
                    assert!(text.contains(&shown), "{}: --{long} is missing", command.get_name());
                }
            }
            assert!(!text.contains("daemon\\-child"), "{}", command.get_name());
        }
        for (name, _) in helper::NAMES {
            assert!(page(name).contains("dedupfs"), "{name}");
        }
        for name in ["dedupfs", "dedupfs-stats", "dedupfs-gc"] {
            assert!(page(name).contains("Exit codes"), "{name}");
        }
        // The hidden ones have none.
        assert!(!root.join("man/dedupfs-generate.8").exists() && !root.join("man/dedupfs-help.8").exists());
    }

    #[test]
    fn every_shell_completes_every_program() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let of = |shell: &str| Some(root.join(shell));
        run(&GenerateArgs { man: None, bash: of("bash"), zsh: of("zsh"), fish: of("fish") }).unwrap();
        for program in programs() {
            let name = program.get_name();
            for file in [format!("bash/{name}"), format!("zsh/_{name}"), format!("fish/{name}.fish")] {
                assert!(fs::read_to_string(root.join(&file)).unwrap().contains(name), "{file}");
            }
        }
        let zsh = fs::read_to_string(root.join("zsh/_dedupfs")).unwrap();
        assert!(zsh.contains("--rebuild-index") && zsh.starts_with("#compdef dedupfs"), "{zsh}");
    }
}
