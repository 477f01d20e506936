//! A case: one fault at one position of one scenario. Its name runs it again.

use std::fmt;
use std::str::FromStr;

use dedupfs_store::device::faulty::{Fault, FaultPlan, Operation};

/// Defines an enum of a few values with names.
macro_rules! named {
    ($(#[$meta:meta])* $type:ident { $($value:ident = $name:literal),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $type { $($value),* }

        impl $type {
            fn name(self) -> &'static str {
                match self { $(Self::$value => $name),* }
            }

            fn parse(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$value),)* _ => None }
            }
        }
    };
}

named! {
    /// The work during which the disk fails.
    Scenario { Format = "format", Work = "work", Versions = "versions", Rebuild = "rebuild" }
}
named! {
    /// Number of disks for the two roots.
    Layout { One = "one", Two = "two" }
}
named! {
    /// Which disk fails.
    Disk { Meta = "meta", Data = "data" }
}
named! {
    /// The event after the fault.
    Aftermath { PowerLoss = "power-loss", Restart = "restart" }
}

const FAULTS: [(Fault, &str); 5] = [
    (Fault::Io, "io"),
    (Fault::NoSpace, "no-space"),
    (Fault::ShortWrite, "short-write"),
    (Fault::ShortWriteNoSpace, "short-write-no-space"),
    (Fault::ShortRead, "short-read"),
];

/// One fault to try, with the work around it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Case {
    pub scenario: Scenario,
    pub layout: Layout,
    pub disk: Disk,
    pub fault: Fault,
    /// `None`: all kinds of operations that change something.
    pub operation: Option<Operation>,
    pub position: u64,
    pub is_lasting: bool,
    pub aftermath: Aftermath,
}

impl Case {
    pub fn plan(&self) -> FaultPlan {
        let operations = self.operation.map_or_else(|| Operation::CHANGING.to_vec(), |operation| vec![operation]);
        let plan = FaultPlan::new(self.fault, self.position).on(&operations);
        if self.is_lasting { plan.lasting() } else { plan }
    }

    /// Whether the fault may leave a directory that cannot be made durable any more.
    pub fn stops_journal(&self) -> bool {
        matches!(self.operation, None | Some(Operation::SyncDirectory))
    }

    pub fn disks(&self) -> usize {
        match self.layout {
            Layout::One => 1,
            Layout::Two => 2,
        }
    }

    /// A seed that differs between cases and is the same in every run.
    pub fn seed(&self) -> u64 {
        let mut seed = 0xcbf2_9ce4_8422_2325_u64;
        for byte in self.to_string().bytes() {
            seed = (seed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        seed
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fault = FAULTS.iter().find(|(fault, _)| *fault == self.fault).map_or("", |(_, name)| name);
        let operation = self.operation.map_or_else(|| "changing".to_owned(), |operation| format!("{operation:?}"));
        let [scenario, layout] = [self.scenario.name(), self.layout.name()];
        let [disk, aftermath] = [self.disk.name(), self.aftermath.name()];
        let lasting = if self.is_lasting { "lasting" } else { "once" };
        write!(f, "{scenario}:{layout}:{disk}:{fault}:{operation}:{}:{lasting}:{aftermath}", self.position)
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let mut parts = text.split(':');
            let scenario = Scenario::parse(parts.next()?)?;
            let layout = Layout::parse(parts.next()?)?;
            let disk = Disk::parse(parts.next()?)?;
            let fault = parts.next()?;
            let fault = FAULTS.iter().find(|(_, name)| *name == fault)?.0;
            let operation = match parts.next()? {
                "changing" => None,
                name => Some(*Operation::ALL.iter().find(|operation| format!("{operation:?}") == name)?),
            };
            let position = parts.next()?.parse().ok()?;
            let is_lasting = match parts.next()? {
                "lasting" => true,
                "once" => false,
                _ => return None,
            };
            let aftermath = Aftermath::parse(parts.next()?)?;
            Some(Self { scenario, layout, disk, fault, operation, position, is_lasting, aftermath })
        };
        parse().ok_or_else(|| format!("{text:?} is no case, such as work:one:meta:io:Write:17:once:power-loss"))
    }
}
