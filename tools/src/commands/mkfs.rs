//! `dedupfs mkfs`.

use std::io::Write;
use std::path::{Path, PathBuf};

use dedupfs::{NoProgress, format};
use dedupfs_store::superblock::{PoolProperties, Role};

use serde_json::json;

use crate::args::MkfsArgs;
use crate::control::{Failure, FailureKind};
use crate::{access, exit, report, size, target};

pub(crate) fn run(args: &MkfsArgs) -> Result<u8, Failure> {
    let properties = PoolProperties {
        chunker: args.chunker,
        chunk_size_bytes: args.chunk_size,
        fingerprint: args.fingerprint,
        compression: args.compression,
        container_bytes: args.container_size,
        tanker_cells: args.tanker_cells,
        tanker_buckets: args.tanker_buckets,
        ..PoolProperties::default()
    };
    let data = args.data.as_deref().filter(|data| *data != args.pool);
    let roots: Vec<&Path> = std::iter::once(args.pool.as_path()).chain(data).collect();
    for root in &roots {
        check_root(root)?;
    }
    // After a failure, only directories made by this command are removed.
    let new_roots: Vec<&Path> = roots.into_iter().filter(|root| !root.exists()).collect();
    let pool = format(&target::absolute(&args.pool)?, data.map(target::absolute).transpose()?.as_deref(), &properties)
        .map_err(|error| {
            for root in new_roots.iter().rev() {
                // Fails if the directory holds anything, as it must.
                let _ = std::fs::remove_dir(root);
            }
            // A usage error here, after clap's checks, comes from the choice of directories.
            let failure = Failure::from(error).usage_as(FailureKind::Failed);
            failure.while_trying(&format!("cannot format {}", args.pool.display()))
        })?;
    let made = json!({
        "pool": report::shown_path(&args.pool),
        "data": data.map(report::shown_path),
        "uuid": pool.to_string(),
        "chunk_size_bytes": args.chunk_size,
        "chunker": args.chunker.to_string(),
        "fingerprint": args.fingerprint.to_string(),
        "compression": args.compression.to_string(),
        "container_bytes": args.container_size,
    });
    let text = || {
        format!(
            "formatted pool {pool} in {}{}\n  chunks of {} by {}, named by {}, compression {}, containers of {}\n  mount it \
         with: dedupfs mount {} MNT\n",
            args.pool.display(),
            data.map(|data| format!(", content in {}", data.display())).unwrap_or_default(),
            size::show(u64::from(args.chunk_size)),
            args.chunker,
            args.fingerprint,
            args.compression,
            size::show(u64::from(args.container_size)),
            quoted(&args.pool),
        )
    };
    exit::print_message(args.json, "mkfs", &made, |_| text())?;
    if data.is_some_and(|data| lies_inside(data, &args.pool)) {
        let _ = writeln!(
            std::io::stderr(),
            "dedupfs: warning: the content lies inside of {}: if that directory is lost, both are, and `dedupfs recover` \
             has nothing to read; a directory beside it, best on another disk, is safer",
            args.pool.display()
        );
    }
    warn_of_small_disks(&args.pool);
    Ok(exit::OK)
}

fn lies_inside(path: &Path, parent: &Path) -> bool {
    let inside = |path: PathBuf| parent.canonicalize().is_ok_and(|parent| path != parent && path.starts_with(parent));
    path.canonicalize().is_ok_and(inside)
}

fn quoted(path: &Path) -> String {
    let shown = path.display().to_string();
    let is_plain = |letter: char| letter.is_alphanumeric() || "/._-+:@%,=".contains(letter);
    if shown.chars().all(is_plain) { shown } else { format!("'{}'", shown.replace('\'', r"'\''")) }
}

/// Warns if the reserve for deleting and reclaiming takes all room of a small disk.
fn warn_of_small_disks(pool: &Path) {
    let looked = access::open(pool, &access::to_read("dedupfs mkfs"), &NoProgress)
        .and_then(|pool| access::with_local(&pool, |pool| Ok(pool.stats()?)));
    // The pool is made. An error here will show again at the next command.
    let Ok(stats) = looked else { return };
    for root in stats.roots.iter().filter(|root| root.usable_bytes == 0) {
        eprintln!(
            "dedupfs: warning: nothing can be written to this pool: {} has {} free of {}, and {} are kept for deleting and \
             reclaiming; make room there, or format a pool on a larger disk",
            root.place,
            size::show(root.free_bytes),
            size::show(root.total_bytes),
            size::show(root.reserve_bytes)
        );
    }
}

/// Resolves a path of a directory that may not exist yet: follows symbolic links and `..` of its existing part.
fn resolved(path: &Path) -> Result<PathBuf, Failure> {
    let whole = target::absolute(path)?;
    let there = whole.ancestors().find_map(|parent| Some((parent, parent.canonicalize().ok()?)));
    Ok(match there {
        Some((parent, real)) => whole.strip_prefix(parent).map_or_else(|_| real.clone(), |rest| real.join(rest)),
        None => whole,
    })
}

/// Checks that a root is absent or empty, and neither a mountpoint of a dedupfs nor inside a pool.
fn check_root(root: &Path) -> Result<(), Failure> {
    let shown = root.display();
    let failed = |message: String| Err(Failure::failed(message));
    let occupied = |message: String| Err(FailureKind::Occupied.because(message));
    if let Some(mount) = target::mounted_at(root)? {
        return occupied(format!(
            "pool {} is mounted on {shown}: a pool must not be inside a dedupfs",
            mount.source.display()
        ));
    }
    let is_pool = |path: &Path| [Role::Meta, Role::Data].iter().any(|role| path.join(role.file_name()).exists());
    for parent in resolved(root)?.ancestors().skip(1) {
        if is_pool(parent) {
            return occupied(format!("{shown} lies inside of the pool {}: choose another directory", parent.display()));
        }
        if let Some(mount) = target::mounted_at(parent)? {
            return occupied(format!(
                "{shown} is in the mounted pool {}: a pool must not be inside a dedupfs",
                mount.source.display()
            ));
        }
    }
    match std::fs::read_dir(root) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => failed(format!("{shown} cannot be used as a pool: {error}")),
        Ok(mut entries) => {
            if is_pool(root) {
                return occupied(format!(
                    "{shown} holds a dedupfs pool already: choose another directory, or remove the pool first if \
                     nothing in it is needed"
                ));
            }
            match entries.next() {
                None => Ok(()),
                Some(_) => occupied(format!("{shown} is not empty: choose an empty or new directory")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_where_a_shell_would_cut_them() {
        for (path, shown) in
            [("/srv/pool-1", "/srv/pool-1"), ("the pool", "'the pool'"), ("it's", r"'it'\''s'"), ("$x", "'$x'")]
        {
            assert_eq!(quoted(Path::new(path)), shown);
        }
    }
}
