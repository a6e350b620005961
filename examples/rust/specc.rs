//! The C interface of specc, as runtime/include/specc.h has it; what each call does is told there.
//! `tests/runtime/test_interface.py` compares both, call by call.
#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_uint, c_void};

pub const SPECC_INTERFACE_VERSION: i32 = 9;

pub type specc_result = c_uint;
pub const SPECC_OK: specc_result = 0;
pub const SPECC_DONE: specc_result = 1;
pub const SPECC_CANCELLED: specc_result = 2;
pub const SPECC_INVALID: specc_result = 3;
pub const SPECC_ARTIFACT: specc_result = 4;
pub const SPECC_MEMORY: specc_result = 5;
pub const SPECC_RUNTIME: specc_result = 6;

#[repr(C)]
pub struct specc_artifact([u8; 0]);
#[repr(C)]
pub struct specc_session([u8; 0]);
#[repr(C)]
pub struct specc_batch([u8; 0]);

#[repr(C)]
pub struct specc_source {
    pub size: usize,
    pub find: Option<
        unsafe extern "C" fn(*mut c_void, *const c_char, *mut *const c_void, *mut usize) -> i32,
    >,
    pub user: *mut c_void,
    pub model: Option<unsafe extern "C" fn() -> *const c_void>,
    pub build: *const c_char,
}

/// `None` is C's NULL.
pub type specc_mask_fn = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        committed: *const i64,
        prompt: usize,
        count: usize,
        drafts: *const i64,
        n_drafts: usize,
        mask: *mut u32,
        words: usize,
    ) -> usize,
>;
pub type specc_drafter_fn = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        committed: *const i64,
        count: usize,
        k: usize,
        draft: *mut i64,
    ) -> usize,
>;

unsafe extern "C" {
    pub fn specc_interface_version() -> i32;
    pub fn specc_version() -> *const c_char;
    pub fn specc_last_error() -> *const c_char;
    pub fn specc_artifact_load(
        path: *const c_char,
        threads: i32,
        out: *mut *mut specc_artifact,
    ) -> specc_result;
    pub fn specc_artifact_load_from(
        source: *const specc_source,
        threads: i32,
        out: *mut *mut specc_artifact,
    ) -> specc_result;
    pub fn specc_artifact_free(artifact: *mut specc_artifact);
    pub fn specc_artifact_threads(artifact: *const specc_artifact) -> i32;
    pub fn specc_artifact_use_threads(artifact: *mut specc_artifact, threads: i32) -> specc_result;
    pub fn specc_artifact_manifest(artifact: *const specc_artifact) -> *const c_char;
    pub fn specc_tokenize(
        artifact: *const specc_artifact,
        text: *const c_char,
        bytes: usize,
        add_special: i32,
        parse_special: i32,
        ids: *mut i64,
        capacity: usize,
        count: *mut usize,
    ) -> specc_result;
    pub fn specc_detokenize(
        artifact: *const specc_artifact,
        ids: *const i64,
        count: usize,
        skip_special: i32,
        text: *mut c_char,
        capacity: usize,
        bytes: *mut usize,
    ) -> specc_result;
    pub fn specc_session_open(
        artifact: *mut specc_artifact,
        session: *mut *mut specc_session,
    ) -> specc_result;
    pub fn specc_session_close(session: *mut specc_session);
    pub fn specc_session_set_int(
        session: *mut specc_session,
        name: *const c_char,
        value: i64,
    ) -> specc_result;
    pub fn specc_session_set_float(
        session: *mut specc_session,
        name: *const c_char,
        value: f64,
    ) -> specc_result;
    pub fn specc_session_set_text(
        session: *mut specc_session,
        name: *const c_char,
        value: *const c_char,
    ) -> specc_result;
    pub fn specc_session_set_ids(
        session: *mut specc_session,
        name: *const c_char,
        ids: *const i64,
        count: usize,
    ) -> specc_result;
    pub fn specc_session_set_stop_tokens(
        session: *mut specc_session,
        ids: *const i64,
        count: usize,
    ) -> specc_result;
    pub fn specc_session_set_logit_bias(
        session: *mut specc_session,
        ids: *const i64,
        bias: *const f32,
        count: usize,
    ) -> specc_result;
    pub fn specc_session_set_mask(
        session: *mut specc_session,
        mask: specc_mask_fn,
        user: *mut c_void,
    ) -> specc_result;
    pub fn specc_session_set_drafter(
        session: *mut specc_session,
        drafter: specc_drafter_fn,
        user: *mut c_void,
    ) -> specc_result;
    pub fn specc_session_append(
        session: *mut specc_session,
        ids: *const i64,
        count: usize,
    ) -> specc_result;
    pub fn specc_session_rewind(session: *mut specc_session, count: usize) -> specc_result;
    pub fn specc_session_next(session: *mut specc_session, token: *mut i64) -> specc_result;
    pub fn specc_session_generate(
        session: *mut specc_session,
        tokens: *mut i64,
        capacity: usize,
        count: *mut usize,
    ) -> specc_result;
    pub fn specc_session_logprobs(
        session: *const specc_session,
        token: *mut f32,
        top_ids: *mut i64,
        top_logprobs: *mut f32,
        capacity: usize,
        count: *mut usize,
    ) -> specc_result;
    pub fn specc_session_prompt_logprobs(
        session: *const specc_session,
        index: usize,
        token: *mut f32,
        rank: *mut i64,
        top_ids: *mut i64,
        top_logprobs: *mut f32,
        capacity: usize,
        count: *mut usize,
    ) -> specc_result;
    pub fn specc_session_finish_reason(session: *const specc_session) -> *const c_char;
    pub fn specc_session_cancel(session: *mut specc_session);
    pub fn specc_session_stat(
        session: *const specc_session,
        name: *const c_char,
        value: *mut f64,
    ) -> specc_result;
    pub fn specc_session_stat_position(
        session: *const specc_session,
        position: usize,
        drafted: *mut f64,
        accepted: *mut f64,
    ) -> specc_result;
    pub fn specc_session_stat_k(
        session: *const specc_session,
        index: usize,
        rounds: *mut f64,
        seconds: *mut f64,
        tokens: *mut f64,
    ) -> specc_result;
    pub fn specc_session_run(
        session: *mut specc_session,
        function: *const c_char,
        inputs: *const *const i64,
        counts: *const usize,
        n_inputs: usize,
        output: *mut c_void,
        capacity_bytes: usize,
        bytes: *mut usize,
    ) -> specc_result;
    pub fn specc_batch_open(
        artifact: *mut specc_artifact,
        texts: i32,
        batch: *mut *mut specc_batch,
    ) -> specc_result;
    pub fn specc_batch_close(batch: *mut specc_batch);
    pub fn specc_batch_session(
        batch: *mut specc_batch,
        session: *mut *mut specc_session,
    ) -> specc_result;
    pub fn specc_batch_step(
        batch: *mut specc_batch,
        sessions: *const *mut specc_session,
        count: usize,
    ) -> specc_result;
    pub fn specc_batch_stat(
        batch: *const specc_batch,
        name: *const c_char,
        value: *mut f64,
    ) -> specc_result;
}
