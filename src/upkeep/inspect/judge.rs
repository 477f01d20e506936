//! Checks that chunks, recipe nodes and tree nodes match their fingerprints.

use dedupfs_content::Fingerprinter;
use dedupfs_store::container::TableEntry;
use dedupfs_store::node::Node;
use dedupfs_store::{ContainerKind, Fingerprint};

/// Judges the entries of a region: chunks are hashed as one batch, nodes are decoded and their identity is hashed.
pub(crate) fn judge(
    kind: ContainerKind,
    fingerprinter: &Fingerprinter,
    entries: &[TableEntry],
    raw: &[u8],
) -> Vec<bool> {
    let total: usize = entries.iter().map(|entry| entry.len_bytes as usize).sum();
    if total > raw.len() {
        return vec![false; entries.len()];
    }
    match kind {
        ContainerKind::Data => {
            let lens: Vec<u32> = entries.iter().map(|entry| entry.len_bytes).collect();
            let mut found: Vec<Fingerprint> = Vec::with_capacity(lens.len());
            fingerprinter.batch(raw, &lens, &mut found);
            entries.iter().zip(&found).map(|(entry, found)| entry.fingerprint == *found).collect()
        }
        ContainerKind::Recipe => {
            let mut rest = raw;
            let of_node = |entry: &TableEntry| {
                let (bytes, behind) = rest.split_at_checked(entry.len_bytes as usize).unwrap_or_default();
                rest = behind;
                Node::decode(bytes).is_ok_and(|node| fingerprinter.of(&node.identity_bytes()) == entry.fingerprint)
            };
            entries.iter().map(of_node).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use dedupfs_store::recipe::Child;
    use dedupfs_store::superblock::FingerprintAlgorithm;
    use dedupfs_store::{ContainerId, ContainerKind};

    use super::*;

    #[test]
    fn other_bytes_than_the_name_says_are_bad_and_the_neighbours_are_not() {
        let fingerprinter = Fingerprinter::new(FingerprintAlgorithm::Blake3);
        let chunks: [&[u8]; 3] = [b"one", b"two and more", b"three"];
        let entries: Vec<TableEntry> = chunks
            .iter()
            .map(|chunk| TableEntry { fingerprint: fingerprinter.of(chunk), len_bytes: chunk.len() as u32 })
            .collect();
        let mut raw = chunks.concat();
        assert_eq!(judge(ContainerKind::Data, &fingerprinter, &entries, &raw), [true; 3]);
        raw[5] ^= 1;
        assert_eq!(judge(ContainerKind::Data, &fingerprinter, &entries, &raw), [true, false, true]);
        assert_eq!(judge(ContainerKind::Data, &fingerprinter, &entries, &raw[1..]), [false; 3], "too short for all");
    }

    #[test]
    fn a_node_is_judged_by_its_identity_and_not_by_its_places() {
        let fingerprinter = Fingerprinter::new(FingerprintAlgorithm::Blake3);
        let child = |hint| Child { fingerprint: Fingerprint([7; 32]), len_bytes: 9, hint: ContainerId(hint) };
        let [one, other] = [1, 2].map(|hint| dedupfs_store::recipe::Node { level: 0, children: vec![child(hint)] });
        let fingerprint = fingerprinter.of(&one.identity_bytes());
        for node in [&one, &other] {
            let bytes = node.encode();
            let entry = TableEntry { fingerprint, len_bytes: bytes.len() as u32 };
            assert_eq!(judge(ContainerKind::Recipe, &fingerprinter, &[entry], &bytes), [true]);
            let wrong = TableEntry { fingerprint: Fingerprint([8; 32]), ..entry };
            assert_eq!(judge(ContainerKind::Recipe, &fingerprinter, &[wrong], &bytes), [false]);
        }
    }
}
