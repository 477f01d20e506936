//! `dedupfs key`.

use std::io::Write as _;
use std::path::Path;

use dedupfs_replica::KeyFile;

use super::replicate::LOST;
use super::replicate::store::{new_passphrase, of_key, passphrase, read_key, write_key};
use crate::args::remote::{KeyArgs, KeyCommand, KeyFileArgs};
use crate::control::Failure;
use crate::exit;

pub(crate) fn run(args: &KeyArgs) -> Result<u8, Failure> {
    match &args.command {
        KeyCommand::New(args) => {
            let file = KeyFile::new("first", &new(args)?).map_err(|error| of_key(&args.file, error))?;
            write_key(&args.file, &file)?;
            eprintln!("dedupfs: {LOST}");
        }
        KeyCommand::List(args) => {
            let file = read_key(&args.file)?;
            exit::print(&format!("key {}\n{}\n", file.key_id(), file.names().join("\n")))?;
        }
        KeyCommand::Add(args) => change(&args.of.file, |file| {
            let (present, added) = (present(&args.of)?, new(&args.of)?);
            file.add(&present, &args.name, &added).map_err(|error| of_key(&args.of.file, error))
        })?,
        KeyCommand::Remove(args) => change(&args.of.file, |file| {
            // Whoever cannot open the file must not shut others out.
            file.secret(&present(&args.of)?).map_err(|error| of_key(&args.of.file, error))?;
            file.remove(&args.name).map_err(|error| of_key(&args.of.file, error))
        })?,
        KeyCommand::Rotate(args) => change(&args.file, |file| {
            let (present, added) = (present(args)?, new(args)?);
            let name = file.rotate(&present, &added).map_err(|error| of_key(&args.file, error))?;
            eprintln!(
                "dedupfs: the passphrase of wrapping {name} is replaced; copies of the file from before are opened by the former one"
            );
            Ok(())
        })?,
    }
    Ok(exit::OK)
}

fn present(args: &KeyFileArgs) -> Result<Vec<u8>, Failure> {
    passphrase(args.passphrase_file.as_deref(), "present passphrase: ")
}

fn new(args: &KeyFileArgs) -> Result<Vec<u8>, Failure> {
    new_passphrase(args.new_passphrase_file.as_deref())
}

/// Changes a key file: a new file takes its place, so that one of the two is always whole. A symbolic link stays one.
fn change(path: &Path, change: impl FnOnce(&mut KeyFile) -> Result<(), Failure>) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::failed(format!("cannot replace {}: {error}", path.display()));
    let mut file = read_key(path)?;
    let before = file.clone();
    change(&mut file)?;
    let place = path.canonicalize().map_err(|error| failed(&error))?;
    let directory = place.parent().unwrap_or(Path::new("/"));
    let mut beside = tempfile::NamedTempFile::new_in(directory).map_err(|error| failed(&error))?;
    let text = file.to_text().map_err(|error| of_key(path, error))?;
    beside.write_all(text.as_bytes()).and_then(|()| beside.as_file().sync_all()).map_err(|error| failed(&error))?;
    if read_key(path)? != before {
        return Err(failed(&"it was changed meanwhile; try again"));
    }
    beside.persist(&place).map_err(|error| failed(&error))?;
    std::fs::File::open(directory).and_then(|directory| directory.sync_all()).map_err(|error| failed(&error))
}
