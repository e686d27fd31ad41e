//! Attacks as plain system calls, without a library between the attack and the kernel.

use std::ffi::CString;

use serde_json::{Value, json};

use crate::ground::{Attack, Ground};

pub(crate) const ATTACKS: &[(&str, Attack)] = &[("raw", raw)];

/// Makes calls one after another: `[[number, argument…], …]`. A text becomes a pointer to it, `{"fd": "workspace"}` the
/// workspace's descriptor, `{"zeroes": n}` a buffer, and `{"result": i}` what the i-th call returned. The answer is the list
/// of errnos, zero for success. A process that one of them makes ends at once.
pub(crate) fn raw(ground: &Ground<'_>, with: &Value) -> Value {
    use std::os::fd::AsRawFd;
    let mut results: Vec<i64> = Vec::new();
    let mut errnos = Vec::new();
    for call in with.as_array().unwrap() {
        let call = call.as_array().unwrap();
        let mut texts = Vec::new();
        let mut buffers: Vec<Vec<u64>> = Vec::new();
        let mut words = [0i64; 6];
        for (word, argument) in words.iter_mut().zip(&call[1..]) {
            *word = match argument {
                Value::String(text) => {
                    texts.push(CString::new(text.as_str()).unwrap());
                    texts.last().unwrap().as_ptr() as i64
                }
                Value::Object(object) => match object.iter().next().unwrap() {
                    (key, value) if key == "fd" && value == "workspace" => {
                        i64::from(ground.workspace.as_raw_fd())
                    }
                    (key, _) if key == "fd" => i64::from(ground.tmp.as_raw_fd()),
                    (key, value) if key == "result" => results[value.as_u64().unwrap() as usize],
                    (_, value) => {
                        buffers.push(vec![0; value.as_u64().unwrap() as usize / 8 + 1]);
                        buffers.last_mut().unwrap().as_mut_ptr() as i64
                    }
                },
                Value::Number(number) => number.as_i64().unwrap(),
                Value::Null | Value::Bool(_) | Value::Array(_) => panic!("no argument: {argument}"),
            };
        }
        // SAFETY: every pointer handed over points into `texts` or `buffers`, which outlive the call. What else the call
        // does to this process is the point of the test.
        let result = unsafe {
            libc::syscall(
                call[0].as_i64().unwrap(),
                words[0],
                words[1],
                words[2],
                words[3],
                words[4],
                words[5],
            )
        };
        // At once: whatever else runs here, an allocation too, may change it.
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap();
        let copies = [libc::SYS_clone, libc::SYS_clone3];
        if result == 0 && copies.contains(&call[0].as_i64().unwrap()) {
            // SAFETY: ends the copy.
            unsafe { libc::_exit(0) };
        }
        results.push(result);
        errnos.push(if result < 0 { errno } else { 0 });
    }
    json!(errnos)
}
