//! Decodes with a specc artifact: main ARTIFACT "prompt" [max_tokens]
//!
//!     rustc --edition 2024 examples/rust/main.rs -L smol.specc/lib -C link-args=-Wl,-rpath,$PWD/smol.specc/lib
//!     ./main smol.specc "The sea is"
mod specc;

use specc::*;
use std::env;
use std::ffi::{CStr, CString};
use std::process::ExitCode;
use std::ptr::null_mut;

#[link(name = "specc")]
unsafe extern "C" {}

/// What specc says of the last failure of this thread.
fn told() -> String {
    unsafe { CStr::from_ptr(specc_last_error()) }
        .to_string_lossy()
        .into_owned()
}

fn ok(result: specc_result) -> Result<(), String> {
    if result == SPECC_OK {
        Ok(())
    } else {
        Err(told())
    }
}

/// Closes what it holds however its owner ends.
struct Artifact(*mut specc_artifact);
impl Drop for Artifact {
    fn drop(&mut self) {
        unsafe { specc_artifact_free(self.0) }
    }
}
struct Session(*mut specc_session);
impl Drop for Session {
    fn drop(&mut self) {
        unsafe { specc_session_close(self.0) }
    }
}

impl Artifact {
    fn load(path: &str) -> Result<Self, String> {
        let (path, mut made) = (CString::new(path).map_err(|e| e.to_string())?, null_mut());
        ok(unsafe { specc_artifact_load(path.as_ptr(), 0, &mut made) })?;
        Ok(Self(made))
    }

    /// Asks for the size first, then for the ids.
    fn tokens(&self, text: &str) -> Result<Vec<i64>, String> {
        let (bytes, mut count) = (text.as_ptr().cast(), 0);
        ok(unsafe { specc_tokenize(self.0, bytes, text.len(), 1, 1, null_mut(), 0, &mut count) })?;
        let mut ids = vec![0; count];
        let place = ids.as_mut_ptr();
        ok(unsafe { specc_tokenize(self.0, bytes, text.len(), 1, 1, place, count, &mut count) })?;
        Ok(ids)
    }

    fn text(&self, ids: &[i64]) -> Result<String, String> {
        let (from, mut size) = (ids.as_ptr(), 0);
        ok(unsafe { specc_detokenize(self.0, from, ids.len(), 1, null_mut(), 0, &mut size) })?;
        let mut text = vec![0; size];
        let place = text.as_mut_ptr().cast();
        ok(unsafe { specc_detokenize(self.0, from, ids.len(), 1, place, size, &mut size) })?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

fn decode(path: &str, prompt: &str, max_tokens: u32) -> Result<String, String> {
    let artifact = Artifact::load(path)?;
    let mut made = null_mut();
    ok(unsafe { specc_session_open(artifact.0, &mut made) })?;
    let session = Session(made);
    ok(unsafe { specc_session_set_int(session.0, c"max_tokens".as_ptr(), max_tokens.into()) })?;
    let ids = artifact.tokens(prompt)?;
    ok(unsafe { specc_session_append(session.0, ids.as_ptr(), ids.len()) })?;
    let (mut found, mut count) = (vec![0; max_tokens as usize], 0);
    let place = found.as_mut_ptr();
    match unsafe { specc_session_generate(session.0, place, found.len(), &mut count) } {
        SPECC_OK | SPECC_DONE => artifact.text(&found[..count]),
        _ => Err(told()),
    }
}

fn main() -> ExitCode {
    let given: Vec<String> = env::args().skip(1).collect();
    let most = given.get(2).map_or(Ok(128), |n| n.parse());
    let ([path, prompt, ..], Ok(most)) = (given.as_slice(), most) else {
        eprintln!("usage: main ARTIFACT \"prompt\" [max_tokens]");
        return ExitCode::from(2);
    };
    if unsafe { specc_interface_version() } != SPECC_INTERFACE_VERSION {
        eprintln!("libspecc speaks another interface version");
        return ExitCode::FAILURE;
    }
    match decode(path, prompt, most) {
        Ok(text) => println!("{text}"),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
