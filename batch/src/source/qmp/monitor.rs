//! The monitor of a qemu: one command at a time, events passed over.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Silence after which a monitor counts as gone.
const SILENCE_SECS: u64 = 60;
/// Bytes of a line at most. A list of nodes has some KiB for each.
const LINE_BYTES_MAX: u64 = 64 << 20;

/// A connected monitor.
#[derive(Debug)]
pub(crate) struct Monitor {
    stream: BufReader<UnixStream>,
}

impl Monitor {
    pub(crate) fn connect(socket: &Path) -> Result<Self, String> {
        let shown = socket.display();
        let stream = UnixStream::connect(socket).map_err(|error| {
            format!("cannot connect to the monitor {shown}: {error} (qemu has it with -qmp unix:{shown},server,nowait)")
        })?;
        let limit = Some(Duration::from_secs(SILENCE_SECS));
        let limited = stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit));
        limited.map_err(|error| format!("cannot use the monitor {shown}: {error}"))?;
        let mut monitor = Self { stream: BufReader::new(stream) };
        let greeting = monitor.receive()?;
        if greeting.get("QMP").is_none() {
            return Err(format!("{shown} is no monitor of qemu that speaks QMP"));
        }
        monitor.ask("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    fn receive(&mut self) -> Result<Value, String> {
        let mut line = Vec::new();
        let received = (&mut self.stream).take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        match received {
            Ok(0) => return Err("qemu has closed its monitor".to_owned()),
            Ok(_) => {}
            Err(error) => return Err(format!("qemu does not answer on its monitor: {error}")),
        }
        serde_json::from_slice(&line).map_err(|error| format!("qemu's monitor says no JSON: {error}"))
    }

    /// Runs a command, and returns its result.
    pub(crate) fn ask(&mut self, command: &str, arguments: &Value) -> Result<Value, String> {
        let line = format!("{}\n", json!({ "execute": command, "arguments": arguments }));
        let sent = self.stream.get_mut().write_all(line.as_bytes());
        sent.map_err(|error| format!("cannot reach qemu's monitor: {error}"))?;
        loop {
            let mut answer = self.receive()?;
            if let Some(error) = answer.get("error") {
                return Err(format!("qemu refuses {command}: {}", error["desc"].as_str().unwrap_or("it says not why")));
            }
            if let Some(result) = answer.get_mut("return") {
                return Ok(result.take());
            }
        }
    }

    /// Waits until something is so.
    pub(crate) fn wait_until(&mut self, is_so: impl Fn(&mut Self) -> Result<bool, String>) -> Result<(), String> {
        let begun = Instant::now();
        while !is_so(self)? {
            if begun.elapsed().as_secs() > SILENCE_SECS {
                return Err(format!("qemu has not ended a job or an export for {SILENCE_SECS} s"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Makes an image, and waits for it.
    pub(crate) fn run_job(&mut self, id: &str, options: &Value) -> Result<(), String> {
        self.ask("blockdev-create", &json!({ "job-id": id, "options": options }))?;
        self.wait_until(|monitor| Ok(monitor.job(id)?.is_none_or(|job| job["status"] == "concluded")))?;
        let error = self.job(id)?.and_then(|job| job["error"].as_str().map(str::to_owned));
        self.ask("job-dismiss", &json!({ "id": id }))?;
        error.map_or(Ok(()), |error| Err(format!("qemu cannot make {}: {error}", options["filename"])))
    }

    fn job(&mut self, id: &str) -> Result<Option<Value>, String> {
        let jobs = self.ask("query-jobs", &json!({}))?;
        Ok(jobs.as_array().and_then(|jobs| jobs.iter().find(|job| job["id"] == id)).cloned())
    }

    pub(crate) fn has_job(&mut self, id: &str) -> Result<bool, String> {
        Ok(self.job(id)?.is_some())
    }

    /// Returns why a job that saves has failed, or none that has not.
    pub(crate) fn job_fails(&mut self, id: &str) -> Result<Option<String>, String> {
        let Some(job) = self.job(id)? else { return Ok(Some("its job has ended".to_owned())) };
        let status = job["status"].as_str().unwrap_or_default().to_owned();
        let jobs = self.ask("query-block-jobs", &json!({}))?;
        let block = jobs.as_array().and_then(|jobs| jobs.iter().find(|job| job["device"] == id));
        let io = block.and_then(|job| job["io-status"].as_str()).unwrap_or("ok");
        Ok((status != "running" || io != "ok").then(|| format!("its job is {status}, its disk {io}")))
    }

    pub(crate) fn has_export(&mut self, id: &str) -> Result<bool, String> {
        let exports = self.ask("query-block-exports", &json!({}))?;
        Ok(exports.as_array().is_some_and(|exports| exports.iter().any(|export| export["id"] == id)))
    }
}
