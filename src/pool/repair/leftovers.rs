//! Files left by an interrupted replacement: new contents that were never put in place.

use dedupfs_base::Result;
use dedupfs_store::StoreError;
use dedupfs_store::device::Device;

/// Directories of a pool in which files are replaced.
const DIRECTORIES: [&str; 5] = ["", "index/chunks", "index/recipes", "index/chunks.b", "index/recipes.b"];

/// Removes `NAME.new` files, if `apply`. Returns the changes made or planned.
pub(super) fn remove(meta_device: &dyn Device, data_device: &dyn Device, apply: bool) -> Result<Vec<String>> {
    let mut plan = Vec::new();
    for (device, directories) in [(meta_device, &DIRECTORIES[..]), (data_device, &[""][..])] {
        for directory in directories {
            let entries = match device.list(directory) {
                Err(StoreError::NotFound { .. }) => continue,
                entries => entries?,
            };
            let mut is_changed = false;
            for entry in entries.iter().filter(|entry| !entry.is_directory) {
                let path =
                    if directory.is_empty() { entry.name.clone() } else { format!("{directory}/{}", entry.name) };
                if !entry.name.ends_with(".new") {
                    continue;
                }
                plan.push(format!("remove {path}, which was left over"));
                if apply {
                    device.remove(&path)?;
                    is_changed = true;
                }
            }
            if is_changed {
                device.sync_directory(directory)?;
            }
        }
    }
    plan.sort();
    plan.dedup();
    Ok(plan)
}
