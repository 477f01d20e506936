//! The disks under a pool: one, or one for each root. Each can fail and lose power.

use std::sync::Arc;

use dedupfs::Result;
use dedupfs::{NoProgress, OpenOptions, Pool};
use dedupfs_store::device::faulty::{FaultPlan, FaultyDevice, Operation};
use dedupfs_store::device::{Device, MemoryDevice};

use crate::case::Disk;

/// One or two disks.
pub struct Disks {
    memory: Vec<MemoryDevice>,
    faulty: Vec<FaultyDevice>,
    /// The same disks as devices: a pool on one disk must see one device.
    devices: Vec<Arc<dyn Device>>,
    /// Number of faults that struck before a remount.
    injected_before: u64,
}

impl Disks {
    /// Creates disks with the content of `images`, which stay unchanged.
    pub fn like(images: &[MemoryDevice]) -> Self {
        let memory: Vec<_> = images.iter().map(MemoryDevice::snapshot_all_synced).collect();
        let faulty: Vec<_> = memory.iter().map(|disk| FaultyDevice::over_memory(disk).losing_names()).collect();
        let devices = faulty.iter().map(|device| Arc::new(device.clone()) as Arc<dyn Device>).collect();
        Self { memory, faulty, devices, injected_before: 0 }
    }

    pub fn empty(count: usize) -> Self {
        Self::like(&vec![MemoryDevice::new(); count])
    }

    pub fn meta(&self) -> &Arc<dyn Device> {
        &self.devices[0]
    }

    pub fn data(&self) -> &Arc<dyn Device> {
        &self.devices[self.devices.len() - 1]
    }

    fn faulty(&self, disk: Disk) -> &FaultyDevice {
        match disk {
            Disk::Meta => &self.faulty[0],
            Disk::Data => &self.faulty[self.faulty.len() - 1],
        }
    }

    pub fn add(&self, disk: Disk, plan: FaultPlan) {
        self.faulty(disk).add(plan);
    }

    pub fn heal(&self) {
        self.faulty.iter().for_each(FaultyDevice::heal);
    }

    /// Returns the number of faults that struck so far.
    pub fn injected(&self) -> u64 {
        self.injected_before + self.faulty.iter().map(FaultyDevice::injected).sum::<u64>()
    }

    /// Mounts the disks' filesystems anew. That is necessary after a directory could not be made durable, because the
    /// journal has stopped. Changes outside the journal are gone. Nothing fails from here on.
    pub fn remount(&mut self) {
        let injected_before = self.injected();
        *self = Self { injected_before, ..Self::like(&self.power_loss(0)) };
    }

    pub fn operations(&self, disk: Disk, operation: Operation) -> u64 {
        self.faulty(disk).operations_of(&[operation])
    }

    /// Returns the disks as the next start finds them if the power fails now. The meta root goes first: it refers to
    /// the data root.
    pub fn power_loss(&self, seed: u64) -> Vec<MemoryDevice> {
        self.memory.iter().map(|disk| disk.crash(seed)).collect()
    }

    pub fn open(&self, rebuild_index: bool) -> Result<Arc<Pool>> {
        let options = OpenOptions {
            memory_bytes: 0,
            rebuild_index,
            // Rounds only on request: positions then mean the same in every run.
            commit_interval: std::time::Duration::from_secs(3600),
            ..OpenOptions::default()
        };
        Pool::open_on(self.meta(), self.data(), Vec::new(), &options, &NoProgress)
    }
}
