//! When and how a mount reclaims and arranges by itself: the options `-o gc` and `-o arrange`, and their details.

use std::fmt;
use std::time::Duration;

use dedupfs::reclaim::{Arranging, ReclaimOptions};

const INTERVAL: Duration = Duration::from_secs(60);
/// Clients count as idle after this time without a request.
pub(crate) const IDLE_AFTER: Duration = Duration::from_secs(5);

/// Hours of the day in local time, without the last one. 22-6 spans midnight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    from: i8,
    to: i8,
}

impl Window {
    fn parse(text: &str) -> Result<Self, String> {
        let hour = |text: &str| text.parse::<i8>().ok().filter(|hour| (0..=24).contains(hour));
        let hours = text.split_once('-').and_then(|(from, to)| Some((hour(from)?, hour(to)?)));
        match hours {
            Some((from, to)) if from != to => Ok(Self { from: from % 24, to: to % 24 }),
            _ => Err("two different hours of the day are needed, from 0 to 24, such as 22-6".to_owned()),
        }
    }

    /// Whether the window includes this hour. Two equal hours mean the whole day.
    pub(crate) const fn includes(self, hour: i8) -> bool {
        if self.from < self.to { self.from <= hour && hour < self.to } else { hour >= self.from || hour < self.to }
    }

    pub(crate) fn left(self, hour: i8, minute: i8) -> Duration {
        let hours = match (self.to - hour).rem_euclid(24) {
            0 => 24,
            hours => hours,
        };
        Duration::from_secs(u64::try_from(i64::from(hours) * 60 - i64::from(minute)).unwrap_or(0) * 60)
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.from, self.to) {
            (from, to) if from == to => f.write_str("at any hour"),
            (from, 0) => write!(f, "from {from} to 24 o'clock"),
            (from, to) => write!(f, "from {from} to {to} o'clock"),
        }
    }
}

/// When content of new versions is arranged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arrange {
    Off,
    /// While clients are idle.
    Idle,
    /// Also beside clients, for a share of the time.
    On,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Policy {
    pub(crate) is_on: bool,
    pub(crate) arrange: Arrange,
    pub(crate) is_idle_only: bool,
    options: ReclaimOptions,
    pub(crate) window: Option<Window>,
    pub(crate) interval: Duration,
    /// An option that says when was given: `gc` with any value, or `arrange` except `off`.
    is_stated: bool,
    /// Another option of this module was given.
    is_detailed: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            is_on: false,
            arrange: Arrange::Idle,
            is_idle_only: false,
            options: ReclaimOptions { is_background: true, ..ReclaimOptions::default() },
            window: None,
            interval: INTERVAL,
            is_stated: false,
            is_detailed: false,
        }
    }
}

fn percent(value: &str) -> Result<u8, String> {
    let percent = value.parse().ok().filter(|percent| *percent <= 100);
    percent.ok_or_else(|| "a number from 0 to 100 is needed".to_owned())
}

impl Policy {
    /// Takes a mount option; returns false if it is not one of this module.
    ///
    /// # Errors
    /// The advice for the user, if the value makes no sense.
    pub(crate) fn take(&mut self, name: &str, value: &str) -> Result<bool, String> {
        match (name, value) {
            ("gc", "" | "on") => (self.is_on, self.is_idle_only) = (true, false),
            ("gc", "idle") => (self.is_on, self.is_idle_only) = (true, true),
            ("gc", "off") => self.is_on = false,
            ("gc", _) => return Err("on, idle or off is needed".to_owned()),
            ("arrange", "idle") => self.arrange = Arrange::Idle,
            ("arrange", "" | "on") => self.arrange = Arrange::On,
            ("arrange", "off") => self.arrange = Arrange::Off,
            ("arrange", _) => return Err("idle, on or off is needed".to_owned()),
            ("gc_threshold", value) => self.options.threshold_percent = percent(value)?,
            ("gc_leave", value) => self.options.leave_percent = percent(value)?,
            ("gc_share", value) => self.options.share_percent = percent(value)?,
            ("gc_window", value) => self.window = Some(Window::parse(value)?),
            ("gc_interval", value) => {
                let secs = value.parse().ok().filter(|secs| (1..=86_400).contains(secs));
                self.interval = Duration::from_secs(secs.ok_or("a number of seconds from 1 to 86400 is needed")?);
            }
            _ => return Ok(false),
        }
        self.is_stated |= name == "gc" || name == "arrange" && !matches!(self.arrange, Arrange::Off);
        self.is_detailed |= !matches!(name, "gc" | "arrange");
        Ok(true)
    }

    /// Whether options say how to reclaim, but none says when.
    pub(crate) const fn is_incomplete(&self) -> bool {
        self.is_detailed && !self.is_stated
    }

    /// Whether there is anything to do in the background.
    pub(crate) const fn does_anything(&self) -> bool {
        self.is_on || !matches!(self.arrange, Arrange::Off)
    }

    /// Whether the next run waits until clients are idle.
    pub(crate) const fn waits_for_idle(&self) -> bool {
        if self.is_on { self.is_idle_only } else { matches!(self.arrange, Arrange::Idle) }
    }

    /// Whether content is arranged only while clients are idle.
    pub(crate) const fn arranges_when_idle(&self) -> bool {
        matches!(self.arrange, Arrange::Idle)
    }

    /// The options of a run that begins while clients are idle, or not.
    pub(crate) fn options(&self, max_time: Option<Duration>, is_idle: bool) -> ReclaimOptions {
        let options = match (self.is_on, self.arrange) {
            (true, Arrange::Idle) if !is_idle => ReclaimOptions { arranging: Arranging::Off, ..self.options },
            (true, Arrange::Off) => ReclaimOptions { arranging: Arranging::Off, ..self.options },
            (true, _) => self.options,
            (false, _) => ReclaimOptions { share_percent: self.options.share_percent, ..ReclaimOptions::arranging() },
        };
        ReclaimOptions {
            share_percent: if self.waits_for_idle() { 0 } else { options.share_percent },
            max_time_ms: max_time.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(0)),
            ..options
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_on {
            return f.write_str("off");
        }
        let when = if self.is_idle_only { "while clients are idle" } else { "whenever something was deleted" };
        let ReclaimOptions { threshold_percent, leave_percent, share_percent, .. } = self.options;
        write!(f, "{when}, below {threshold_percent}%, leaving {leave_percent}%")?;
        if !self.is_idle_only {
            write!(f, ", {share_percent}% of the time beside clients")?;
        }
        self.window.map_or(Ok(()), |window| write!(f, ", {window}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_span_midnight() {
        let night = Window::parse("22-6").unwrap();
        for (hour, is_in) in [(21, false), (22, true), (23, true), (0, true), (5, true), (6, false), (12, false)] {
            assert_eq!(night.includes(hour), is_in, "{hour}");
        }
        let day = Window::parse("9-17").unwrap();
        assert!(day.includes(9) && day.includes(16) && !day.includes(17) && !day.includes(8));
        assert!((0..24).all(|hour| Window::parse("0-24").unwrap().includes(hour)));
        assert_eq!(night.left(23, 30), Duration::from_secs(6 * 3600 + 1800));
        assert_eq!(Window::parse("0-24").unwrap().left(0, 0), Duration::from_secs(24 * 3600));
        assert_eq!(night.to_string(), "from 22 to 6 o'clock");
        assert_eq!(Window::parse("0-24").unwrap().to_string(), "at any hour");
        assert_eq!(Window::parse("20-24").unwrap().to_string(), "from 20 to 24 o'clock");
        for nonsense in ["", "5", "6-6", "25-3", "-1-3", "a-b", "1-2-3"] {
            assert!(Window::parse(nonsense).is_err(), "{nonsense}");
        }
    }

    #[test]
    fn options_are_taken_and_checked() {
        let mut policy = Policy::default();
        assert_eq!(policy.take("data_limit", "5"), Ok(false));
        for (name, value) in
            [("gc", ""), ("gc_threshold", "80"), ("gc_leave", "3"), ("gc_share", "20"), ("gc_interval", "5")]
        {
            assert_eq!(policy.take(name, value), Ok(true), "{name}");
        }
        let options = policy.options(Some(Duration::from_secs(2)), true);
        assert_eq!((options.threshold_percent, options.leave_percent, options.share_percent), (80, 3, 20));
        assert_eq!((options.max_time_ms, policy.interval), (2000, Duration::from_secs(5)));
        policy.take("gc", "idle").unwrap();
        assert_eq!(policy.options(None, true).share_percent, 0);
        policy.take("gc", "off").unwrap();
        assert_eq!(policy.to_string(), "off");
        let arranging = policy.options(None, true);
        assert_eq!(
            (arranging.threshold_percent, arranging.arranging, arranging.share_percent),
            (0, Arranging::Alone, 0)
        );
        policy.take("arrange", "on").unwrap();
        assert!(policy.options(None, true).share_percent == 20 && !policy.waits_for_idle());
        policy.take("arrange", "off").unwrap();
        assert!(!policy.does_anything());
        policy.take("gc", "on").unwrap();
        assert_eq!(policy.options(None, true).arranging, Arranging::Off);
        policy.take("arrange", "idle").unwrap();
        let arranging = [true, false].map(|is_idle| policy.options(None, is_idle).arranging);
        assert_eq!(arranging, [Arranging::Budget, Arranging::Off]);
        for (name, value) in
            [("gc", "maybe"), ("gc_leave", "101"), ("gc_interval", "0"), ("gc_window", "night"), ("arrange", "5")]
        {
            assert!(policy.take(name, value).is_err(), "{name}={value}");
        }
    }
}
