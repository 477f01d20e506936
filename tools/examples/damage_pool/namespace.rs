//! Writes other values into records of the namespace, with valid checksums. Tables and keys are those of docs/format.md.

use std::path::Path;
use std::{fs, io};

use dedupfs_store::codec::{checksum, checksum_seeded};
use redb::{Database, Key, ReadableDatabase as _, ReadableTable as _, TableDefinition};

use crate::Reach;
use crate::random::Random;

/// Bytes of the key, as they are mixed into the record's checksum, and of the value.
type Row = (Vec<u8>, Vec<u8>);

/// Changes one record of one table, and removes the checksums of blocks, which are then made anew.
pub(crate) fn change(store: &Path, random: &mut Random) -> io::Result<Reach> {
    let reach = change_table(store, random).map_err(io::Error::other)?;
    for sums in ["namespace.sums-a", "namespace.sums-b"] {
        match fs::remove_file(store.with_file_name(sums)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(reach)
}

fn change_table(store: &Path, random: &mut Random) -> Result<Reach, redb::Error> {
    let database = Database::open(store)?;
    let numbered = |name| TableDefinition::<u64, &[u8]>::new(name);
    let named = |name| TableDefinition::<&[u8], &[u8]>::new(name);
    let parts = |name| TableDefinition::<(u64, u32), &[u8]>::new(name);
    let (name, reach) = *random.choose(&[
        ("meta", Reach::Names),
        ("inodes", Reach::Names),
        ("inodes", Reach::Names),
        ("entries", Reach::Names),
        ("entries", Reach::Names),
        ("order", Reach::Names),
        ("xattrs", Reach::Strict),
        ("containers", Reach::Strict),
        ("containers", Reach::Strict),
        ("log", Reach::Strict),
        ("changes", Reach::Strict),
        ("leaving", Reach::Strict),
    ]);
    let changed = match name {
        "entries" | "xattrs" => change_row(&database, named(name), random)?,
        "order" => change_row(&database, TableDefinition::<&[u8; 16], &[u8]>::new(name), random)?,
        "log" | "changes" => change_row(&database, parts(name), random)?,
        _ => change_row(&database, numbered(name), random)?,
    };
    println!("{} {name}: {}", store.display(), changed.as_deref().unwrap_or("no row"));
    Ok(if changed.is_some() { reach } else { Reach::Strict })
}

/// Changes a random row and describes the change; `None` if the table has no rows.
fn change_row<K>(
    database: &Database,
    definition: TableDefinition<'_, K, &'static [u8]>,
    random: &mut Random,
) -> Result<Option<String>, redb::Error>
where
    K: Key + 'static,
{
    let rows = {
        let reading = database.begin_read()?;
        let table = match reading.open_table(definition) {
            Ok(table) => table,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let row = |row: Result<(redb::AccessGuard<'_, K>, redb::AccessGuard<'_, &'static [u8]>), _>| {
            row.map(|(key, value)| -> Row { (K::as_bytes(&key.value()).as_ref().to_vec(), value.value().to_vec()) })
        };
        table.iter()?.map(row).collect::<Result<Vec<_>, redb::StorageError>>()?
    };
    if rows.is_empty() {
        return Ok(None);
    }
    let place = random.below(rows.len());
    let (key_bytes, mut value) = rows[place].clone();
    let how = if random.below(4) == 0 {
        // The value of another row.
        let other = random.below(rows.len());
        value.clone_from(&rows[other].1);
        format!("the value of row {other}")
    } else {
        distort(&mut value, random)
    };
    fit(&key_bytes, &mut value);
    let writing = database.begin_write()?;
    {
        let mut table = writing.open_table(definition)?;
        table.insert(K::from_bytes(&key_bytes), value.as_slice())?;
    }
    writing.commit()?;
    Ok(Some(format!("row {place} of {} ({}): {how}", rows.len(), key_bytes.escape_ascii())))
}

/// Changes some bytes of a record's body, or its length.
fn distort(value: &mut Vec<u8>, random: &mut Random) -> String {
    // The version is before the body, the checksum behind it.
    let body = 1..value.len().saturating_sub(4).max(1);
    if body.is_empty() || random.below(8) == 0 {
        let len = random.below(value.len() + 20).max(5);
        value.resize(len, random.next() as u8);
        return format!("{len} bytes");
    }
    let width = (*random.choose(&[1, 2, 4, 8])).min(body.len());
    let at = body.start + random.below(body.len() - width + 1);
    random.other(&mut value[at..at + width]);
    format!("{width} bytes at {at}")
}

fn fit(key_bytes: &[u8], value: &mut [u8]) {
    if let Some((sealed, sum)) = value.split_last_chunk_mut::<4>() {
        let mixed = checksum_seeded(sealed, checksum(key_bytes));
        *sum = ((mixed ^ (mixed >> 32)) as u32).to_le_bytes();
    }
}
