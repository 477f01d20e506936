//! `dedupfs generate`: writes man pages and shell completions from the source of `--help`.
//!
//! There is one page for each program, each command of `dedupfs` (`dedupfs-mount.8`) and each helper. There is one file for each program
//! and shell, under the name by which the shell finds it.

use std::path::Path;
use std::{fs, io};

use clap::{Arg, Command, CommandFactory};
use clap_complete::Shell;

use crate::args::helpers::{FsckHelper, MkfsHelper, MountHelper, UmountHelper};
use crate::args::{Dedupfs, Gc, GenerateArgs, Stats};
use crate::control::Failure;
use crate::exit;

/// Section of the manual: commands for administration.
const SECTION: &str = "8";

const SAME_PAGES: [(&str, &str); 1] = [("mount.fuse.dedupfs", "mount.dedupfs")];

pub(crate) fn programs() -> Vec<Command> {
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

pub(crate) fn run(args: &GenerateArgs) -> Result<u8, Failure> {
    if let Some(directory) = &args.man {
        in_directory(directory, man_pages)?;
    }
    for (shell, directory) in [(Shell::Bash, &args.bash), (Shell::Zsh, &args.zsh), (Shell::Fish, &args.fish)] {
        if let Some(directory) = directory {
            in_directory(directory, |directory| completions(shell, directory))?;
        }
    }
    exit::print_done(args.json, "generate")?;
    Ok(exit::OK)
}

fn in_directory(directory: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), Failure> {
    fs::create_dir_all(directory)
        .and_then(|()| write(directory))
        .map_err(|error| Failure::failed(format!("cannot write to {}: {error}", directory.display())))
}

fn man_pages(directory: &Path) -> io::Result<()> {
    for program in programs() {
        // The help command would be listed as a command with a page of its own.
        let mut program = program.disable_help_subcommand(true);
        // Gives commands their full names.
        program.build();
        page(&program, directory)?;
        for command in program.get_subcommands().filter(|command| !command.is_hide_set()) {
            page(command, directory)?;
            command.get_subcommands().try_for_each(|command| page(command, directory))?;
        }
    }
    for (name, of) in SAME_PAGES {
        fs::write(directory.join(format!("{name}.{SECTION}")), format!(".so man{SECTION}/{of}.{SECTION}\n"))?;
    }
    Ok(())
}

fn page(command: &Command, directory: &Path) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone().override_usage(synopsis(command)))
        .section(SECTION)
        .source(format!("dedupfs {}", env!("CARGO_PKG_VERSION")))
        .manual("dedupfs")
        .render(&mut text)?;
    let text = String::from_utf8(text).map_err(io::Error::other)?.replace("\n.SH EXTRA\n", "\n.SH NOTES\n");
    let others = companions().into_iter().filter(|other| other != name);
    let others: Vec<String> = others.map(|other| format!("\\fB{}\\fR({SECTION})", other.replace('-', "\\-"))).collect();
    let text = format!("{text}.SH \"SEE ALSO\"\n{}\n", others.join(",\n"));
    fs::write(directory.join(format!("{name}.{SECTION}")), text)
}

/// The pages under SEE ALSO: the programs and all commands. A page leaves itself out.
fn companions() -> Vec<String> {
    let dedupfs = Dedupfs::command();
    let commands = dedupfs.get_subcommands().filter(|command| !command.is_hide_set());
    let commands = commands.map(|command| format!("dedupfs-{}", command.get_name()));
    let others = ["dedupfs-stats", "dedupfs-gc", "mount.dedupfs"].map(str::to_owned);
    std::iter::once("dedupfs".to_owned()).chain(commands).chain(others).collect()
}

/// The usage line: all options with their values, then positional arguments.
fn synopsis(command: &Command) -> String {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let (positionals, options): (Vec<_>, Vec<_>) = command
        .get_arguments()
        .filter(|argument| !argument.is_hide_set())
        .partition(|argument| argument.is_positional());
    let value = |argument: &Arg| argument.get_value_names().map(|names| names.join(" ")).unwrap_or_default();
    let options = options.into_iter().map(|option| {
        let long = option.get_long().map(|long| format!("--{long}"));
        let short = option.get_short().map(|short| format!("-{short}"));
        let names: Vec<String> = short.into_iter().chain(long).collect();
        let space = if option.get_action().takes_values() { " " } else { "" };
        let value = if space.is_empty() { String::new() } else { value(option) };
        format!(" [{}{space}{value}]", names.join("|"))
    });
    let positionals = positionals.into_iter().map(|argument| format!(" {}", value(argument)));
    let commands = if command.has_subcommands() { " COMMAND" } else { "" };
    std::iter::once(name.to_owned()).chain(options).chain(positionals).chain([commands.to_owned()]).collect()
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
        // Options hidden from the help are not hidden from shells: remove a word in bash, whole lines in the others.
        let text = String::from_utf8(text).map_err(io::Error::other)?.replace(" --daemon-child", "");
        let text: String = text.split_inclusive('\n').filter(|line| !line.contains("daemon-child")).collect();
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
        run(&GenerateArgs { man: Some(root.join("man")), bash: None, zsh: None, fish: None, json: false }).unwrap();
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
        let companions = companions();
        assert!(companions.contains(&"dedupfs-put".to_owned()) && companions.contains(&"dedupfs-get".to_owned()));
        for name in &companions {
            let text = page(name);
            let see_also = text.split(".SH \"SEE ALSO\"").nth(1).unwrap();
            assert_eq!(see_also.lines().filter(|line| line.contains("(8)")).count(), companions.len() - 1, "{name}");
            assert!(!text.contains("help(8)") && !text.contains("SH EXTRA"), "{text}");
        }
        assert!(page("dedupfs-mount").contains("[\\-o|\\-\\-options OPTIONS]"), "{}", page("dedupfs-mount"));
        assert!(page("dedupfs-scrub").contains("[\\-\\-rate SIZE]") && !page("dedupfs-sync").contains("e2fsck"));
        // A page tells more than a list of commands does.
        assert!(page("dedupfs-put").contains("hard links, holes and devices"), "{}", page("dedupfs-put"));
        for name in ["set", "show", "unset"] {
            assert!(page(&format!("dedupfs-series-{name}")).contains("MNT/DIR"), "{name}");
        }
        // Hidden commands have no page.
        assert!(!root.join("man/dedupfs-generate.8").exists() && !root.join("man/dedupfs-help.8").exists());
    }

    #[test]
    fn every_shell_completes_every_program() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let of = |shell: &str| Some(root.join(shell));
        run(&GenerateArgs { man: None, bash: of("bash"), zsh: of("zsh"), fish: of("fish"), json: false }).unwrap();
        for program in programs() {
            let name = program.get_name();
            for file in [format!("bash/{name}"), format!("zsh/_{name}"), format!("fish/{name}.fish")] {
                assert!(fs::read_to_string(root.join(&file)).unwrap().contains(name), "{file}");
            }
        }
        for file in ["bash/dedupfs", "zsh/_dedupfs", "fish/dedupfs.fish"] {
            let text = fs::read_to_string(root.join(file)).unwrap();
            assert!(!text.contains("daemon-child") && text.contains("fastcdc"), "{file}");
        }
        let zsh = fs::read_to_string(root.join("zsh/_dedupfs")).unwrap();
        assert!(zsh.contains("--rebuild-index") && zsh.starts_with("#compdef dedupfs"), "{zsh}");
    }
}
