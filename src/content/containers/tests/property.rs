//! Any sequence of operations against a model: a map from chunk to container.

use std::sync::Arc;

use dedupfs_store::container::Compression;
use dedupfs_store::device::{Device, MemoryDevice};
use proptest::prelude::*;

use super::{CONTAINER_BYTES, Harness, options, stream};
use crate::containers::ContainerOptions;

#[derive(Clone, Debug)]
enum Step {
    Append {
        stream: u64,
        chunks: u64,
    },
    Commit,
    /// A write-out whose commit fails.
    WriteOut,
    Seal,
    WaitForRoom,
    Reopen,
    /// Power is lost; only committed chunks are left.
    Crash {
        seed: u64,
    },
    /// Removes the closed container at this position.
    Remove {
        position: usize,
    },
    Check,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..6_u64, 1..40_u64).prop_map(|(stream, chunks)| Step::Append { stream, chunks }),
        3 => Just(Step::Commit),
        1 => Just(Step::WriteOut),
        1 => Just(Step::Seal),
        1 => Just(Step::WaitForRoom),
        1 => Just(Step::Reopen),
        1 => any::<u64>().prop_map(|seed| Step::Crash { seed }),
        1 => any::<usize>().prop_map(|position| Step::Remove { position }),
        1 => Just(Step::Check),
    ]
}

fn run(steps: &[Step], options: &ContainerOptions) {
    let mut memory = MemoryDevice::new();
    let mut harness = Harness::new(Arc::new(memory.clone()), options.clone());
    let mut committed = harness.placed.clone();
    let mut number = 0;
    for step in steps {
        match step {
            Step::Append { stream: to, chunks } => {
                harness.append_all(stream(*to), number..number + chunks);
                number += chunks;
            }
            Step::Commit => {
                harness.commit().expect("commits");
                committed.clone_from(&harness.placed);
            }
            Step::WriteOut => drop(harness.store.write_out().expect("writes out")),
            Step::Seal => harness.store.seal_all(),
            Step::WaitForRoom => {
                harness.store.wait_for_room().expect("makes room");
            }
            Step::Reopen => {
                harness.reopen(options.clone());
                committed.clone_from(&harness.placed);
            }
            Step::Crash { seed } => {
                memory = memory.crash(*seed);
                let device: Arc<dyn Device> = Arc::new(memory.clone());
                harness.device = device;
                harness.placed.clone_from(&committed);
                harness.open_again(options.clone());
            }
            Step::Remove { position } => {
                let closed =
                    harness.records().into_iter().filter(|record| harness.store.closed_record(record.id).is_some());
                let closed: Vec<_> = closed.map(|record| record.id).collect();
                if let Some(id) = closed.get(position % closed.len().max(1)) {
                    // The namespace forgets it first.
                    harness.records.remove(id);
                    harness.placed.retain(|_, container| container != id);
                    committed.retain(|_, container| container != id);
                    harness.store.remove(&[*id]).expect("frees");
                }
            }
            Step::Check => harness.check_all(),
        }
        harness.store.self_check();
    }
    harness.check_all();
    harness.reopen(options.clone());
    harness.check_all();
    for record in harness.records() {
        harness.store.verify(record.id).expect("sound");
        assert!(record.used_bytes <= options.container_bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_operations_keeps_every_chunk(
        steps in prop::collection::vec(step(), 1..40),
        is_compressed in any::<bool>(),
        // Frames of large regions refer to their bytes in place.
        (container_bytes, region_raw_bytes) in prop::sample::select(vec![
            (CONTAINER_BYTES, 1),
            (CONTAINER_BYTES, 4096),
            (CONTAINER_BYTES, 8192),
            (CONTAINER_BYTES, 16_000),
            (512 << 10, 80_000),
            (512 << 10, 140_000),
        ]),
    ) {
        let compression = if is_compressed { Compression::Zstd(1) } else { Compression::None };
        run(&steps, &ContainerOptions { compression, container_bytes, region_raw_bytes, ..options() });
    }
}
