//! Damage that disks do to files, as data: a [`Case`] can be printed, read again, and applied to an image.

use std::fmt;
use std::str::FromStr;

use dedupfs_store::device::{Device, OpenMode};

use crate::image::{Image, Root};

/// Bytes of a sector.
pub const SECTOR_BYTES: u64 = 512;
/// Bytes of a block.
pub const BLOCK_BYTES: u64 = 4096;

/// Damage to one file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Damage {
    /// Some bits of one byte are inverted.
    Flip { offset: u64, mask: u8 },
    /// A sector reads as zeros.
    ZeroSector { offset: u64 },
    /// Two blocks changed places.
    SwapBlocks { first: u64, second: u64 },
    /// A block has its older content: a write was lost.
    OldBlock { offset: u64 },
    /// The whole file has its older content.
    OldFile,
    /// The file is cut short.
    Truncate { len_bytes: u64 },
    /// Foreign bytes follow the file's end.
    Extend { len_bytes: u64 },
    /// The file is gone.
    Remove,
    /// The file is from another pool.
    OtherPool,
}

/// The way a damaged pool is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Opened for writing, with recovery.
    Write,
    /// Opened for reading.
    ReadOnly,
    /// The index is rebuilt.
    Rebuild,
    /// The index is rebuilt, and all content is read for that.
    RebuildThoroughly,
}

/// Damage of one file, and the use of the pool afterwards.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Case {
    pub image: &'static str,
    pub root: Root,
    pub path: String,
    pub damage: Damage,
    pub way: Way,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Flip { offset, mask } => write!(f, "flip:{offset}:{mask}"),
            Self::ZeroSector { offset } => write!(f, "zero:{offset}"),
            Self::SwapBlocks { first, second } => write!(f, "swap:{first}:{second}"),
            Self::OldBlock { offset } => write!(f, "old-block:{offset}"),
            Self::OldFile => write!(f, "old-file"),
            Self::Truncate { len_bytes } => write!(f, "truncate:{len_bytes}"),
            Self::Extend { len_bytes } => write!(f, "extend:{len_bytes}"),
            Self::Remove => write!(f, "remove"),
            Self::OtherPool => write!(f, "other-pool"),
        }
    }
}

impl FromStr for Damage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut fields = text.split(':');
        let name = fields.next().unwrap_or_default();
        let mut number = || -> Result<u64, String> {
            fields.next().and_then(|field| field.parse().ok()).ok_or_else(|| format!("{text}: a number is missing"))
        };
        Ok(match name {
            "flip" => Self::Flip { offset: number()?, mask: number()? as u8 },
            "zero" => Self::ZeroSector { offset: number()? },
            "swap" => Self::SwapBlocks { first: number()?, second: number()? },
            "old-block" => Self::OldBlock { offset: number()? },
            "old-file" => Self::OldFile,
            "truncate" => Self::Truncate { len_bytes: number()? },
            "extend" => Self::Extend { len_bytes: number()? },
            "remove" => Self::Remove,
            "other-pool" => Self::OtherPool,
            _ => return Err(format!("{text}: no such damage")),
        })
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {} {:?}", self.image, self.root.name(), self.path, self.damage, self.way)
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fields: Vec<&str> = text.split(' ').collect();
        let &[image, root, path, damage, way] = fields.as_slice() else {
            return Err(format!("{text:?}: expected IMAGE ROOT PATH DAMAGE WAY"));
        };
        let image = match image {
            "closed" => "closed",
            "crashed" => "crashed",
            _ => return Err(format!("{image}: no such image")),
        };
        let way = match way {
            "Write" => Way::Write,
            "ReadOnly" => Way::ReadOnly,
            "Rebuild" => Way::Rebuild,
            "RebuildThoroughly" => Way::RebuildThoroughly,
            _ => return Err(format!("{way}: no such way")),
        };
        Ok(Self { image, root: Root::parse(root)?, path: path.to_owned(), damage: damage.parse()?, way })
    }
}

impl Case {
    /// Damages `device`, a copy of the image's root. Returns whether that changed anything.
    pub fn apply(&self, device: &dyn Device, image: &Image) -> bool {
        let path = &self.path;
        if self.damage == Damage::Remove {
            device.remove(path).expect("removes");
            return true;
        }
        let file = device.open(path, OpenMode::Write).expect("opens");
        let len_bytes = file.len().expect("has a length");
        let get = |offset: u64| {
            let mut block = vec![0; BLOCK_BYTES.min(len_bytes - offset) as usize];
            file.read_exact_at(&mut block, offset).expect("reads");
            block
        };
        let replace_all = |bytes: &[u8]| {
            file.set_len(0).expect("cuts");
            file.write_at(bytes, 0).expect("writes");
        };
        let before = image.bytes(self.root, path);
        match self.damage {
            Damage::Flip { offset, mask } => {
                let byte = get(offset).first().copied().expect("a byte");
                file.write_at(&[byte ^ mask], offset).expect("writes");
            }
            Damage::ZeroSector { offset } => {
                let len = SECTOR_BYTES.min(len_bytes - offset) as usize;
                file.write_at(&vec![0; len], offset).expect("writes");
            }
            Damage::SwapBlocks { first, second } => {
                let (one, other) = (get(first), get(second));
                file.write_at(&other, first).expect("writes");
                file.write_at(&one, second).expect("writes");
            }
            Damage::OldBlock { offset } => {
                let old = image.older_bytes(self.root, path);
                let end = (offset + BLOCK_BYTES).min(old.len() as u64).min(len_bytes);
                let block = old.get(offset as usize..end as usize).unwrap_or_default();
                file.write_at(block, offset).expect("writes");
            }
            Damage::OldFile => replace_all(&image.older_bytes(self.root, path)),
            Damage::Truncate { len_bytes } => file.set_len(len_bytes).expect("cuts"),
            Damage::Extend { len_bytes: more } => {
                let garbage: Vec<u8> = (0..more).map(|at| (at * 31 + 7) as u8).collect();
                file.write_at(&garbage, len_bytes).expect("writes");
            }
            Damage::OtherPool => replace_all(&image.other_pools_bytes(self.root, path)),
            Damage::Remove => unreachable!("done above"),
        }
        file.sync().expect("syncs");
        drop(file);
        device.read_file(path, 1 << 30).expect("reads") != before
    }
}
