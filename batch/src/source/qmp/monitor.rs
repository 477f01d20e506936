//! The monitor of a qemu: one question at a time, events passed over.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Time in which a question is answered, or a job or an export ends.
const ANSWER_SECS: u64 = 60;
/// Bytes of a line at most. A list of nodes has some KiB for each.
const LINE_BYTES_MAX: u64 = 4 << 20;
/// Letters of a message of qemu that are shown at most.
const WORDS_MAX: usize = 300;

/// A monitor. It is connected anew behind an error, since a late answer would be taken for that to the next question.
#[derive(Debug)]
pub(crate) struct Monitor {
    socket: PathBuf,
    stream: Option<BufReader<UnixStream>>,
    questions: u64,
}

impl Monitor {
    pub(crate) fn connect(socket: &Path) -> Result<Self, String> {
        let mut monitor = Self { socket: socket.to_owned(), stream: None, questions: 0 };
        monitor.stream = Some(monitor.open()?);
        Ok(monitor)
    }

    fn open(&mut self) -> Result<BufReader<UnixStream>, String> {
        let shown = self.socket.display();
        let stream = UnixStream::connect(&self.socket).map_err(|error| {
            format!(
                "cannot connect to the monitor {shown}: {error} (qemu has it with -qmp unix:{shown},server=on,wait=off)"
            )
        })?;
        let limit = Some(Duration::from_secs(ANSWER_SECS));
        let limited = stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit));
        limited.map_err(|error| format!("cannot use the monitor {shown}: {error}"))?;
        let mut stream = BufReader::new(stream);
        if receive(&mut stream)?.get("QMP").is_none() {
            return Err(format!("{shown} is no monitor of qemu that speaks QMP"));
        }
        self.exchange(&mut stream, "qmp_capabilities", &json!({}))??;
        Ok(stream)
    }

    /// Asks a question, and returns its answer.
    pub(crate) fn ask(&mut self, command: &str, arguments: &Value) -> Result<Value, String> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.open()?,
        };
        let answer = self.exchange(&mut stream, command, arguments)?;
        self.stream = Some(stream);
        answer
    }

    /// The inner error is qemu's answer; behind the outer one the stream is of no use.
    fn exchange(
        &mut self,
        stream: &mut BufReader<UnixStream>,
        command: &str,
        arguments: &Value,
    ) -> Result<Result<Value, String>, String> {
        self.questions += 1;
        let id = self.questions;
        let line = format!("{}\n", json!({ "execute": command, "arguments": arguments, "id": id }));
        let sent = stream.get_mut().write_all(line.as_bytes());
        sent.map_err(|error| format!("cannot reach qemu's monitor: {error}"))?;
        let begun = Instant::now();
        loop {
            let mut answer = receive(stream)?;
            if answer["id"] == id {
                if let Some(result) = answer.get_mut("return") {
                    return Ok(Ok(result.take()));
                }
                let why = answer["error"]["desc"].as_str().unwrap_or("it says not why");
                let why: String = why.chars().filter(|letter| !letter.is_control()).take(WORDS_MAX).collect();
                return Ok(Err(format!("qemu refuses {command}: {why}")));
            }
            if begun.elapsed().as_secs() > ANSWER_SECS {
                return Err(silence());
            }
        }
    }

    /// Asks every 20 ms until something is so, for 60 s at most.
    pub(crate) fn wait_until(&mut self, is_so: impl Fn(&mut Self) -> Result<bool, String>) -> Result<(), String> {
        let begun = Instant::now();
        while !is_so(self)? {
            if begun.elapsed().as_secs() > ANSWER_SECS {
                return Err(format!("qemu has not ended a job or an export for {ANSWER_SECS} s"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Makes an image, and waits for it.
    pub(crate) fn create_image(&mut self, job: &str, options: &Value) -> Result<(), String> {
        self.ask("blockdev-create", &json!({ "job-id": job, "options": options }))?;
        self.wait_until(|monitor| Ok(monitor.job(job)?.is_none_or(|job| job["status"] == "concluded")))?;
        let error = self.job(job)?.and_then(|job| job["error"].as_str().map(str::to_owned));
        self.ask("job-dismiss", &json!({ "id": job }))?;
        error.map_or(Ok(()), |error| Err(format!("qemu cannot make the scratch file {}: {error}", options["filename"])))
    }

    fn jobs(&mut self) -> Result<Vec<Value>, String> {
        Ok(self.ask("query-jobs", &json!({}))?.as_array().cloned().unwrap_or_default())
    }

    fn job(&mut self, id: &str) -> Result<Option<Value>, String> {
        Ok(self.jobs()?.into_iter().find(|job| job["id"] == id))
    }

    pub(crate) fn names_of_jobs(&mut self) -> Result<Vec<String>, String> {
        Ok(self.jobs()?.iter().filter_map(|job| job["id"].as_str().map(str::to_owned)).collect())
    }

    /// Ends a job, if there is one of this name, also one that has concluded.
    pub(crate) fn end_job(&mut self, id: &str) -> Result<(), String> {
        let Some(job) = self.job(id)? else { return Ok(()) };
        if job["status"] != "concluded" {
            match job["type"].as_str() {
                Some("backup") => self.ask("block-job-cancel", &json!({ "device": id, "force": true }))?,
                _ => self.ask("job-cancel", &json!({ "id": id }))?,
            };
        }
        let is_over = |job: Option<Value>| job.is_none_or(|job| job["status"] == "concluded");
        self.wait_until(|monitor| Ok(is_over(monitor.job(id)?)))?;
        match self.job(id)? {
            Some(_) => self.ask("job-dismiss", &json!({ "id": id })).map(drop),
            None => Ok(()),
        }
    }

    /// Returns why a job that saves has failed; `None` while it runs without an error.
    pub(crate) fn failure_of_job(&mut self, id: &str) -> Result<Option<String>, String> {
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

fn silence() -> String {
    format!("qemu has not answered on its monitor for {ANSWER_SECS} s: does another client, such as libvirt, hold it?")
}

fn receive(stream: &mut BufReader<UnixStream>) -> Result<Value, String> {
    let mut line = Vec::new();
    match stream.take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
        Ok(0) => return Err("qemu has closed its monitor".to_owned()),
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(silence()),
        Err(error) => return Err(format!("cannot read from qemu's monitor: {error}")),
    }
    serde_json::from_slice(&line).map_err(|error| format!("qemu's monitor says no JSON: {error}"))
}
