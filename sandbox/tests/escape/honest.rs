//! Ordinary programs work, and raise no denial in any profile that may run them.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use crate::ground::{Attack, EXEC, EXEC_HIGH, Ground, Promise, replied};

pub(crate) const ATTACKS: &[(&str, Attack)] = &[("work", work), ("shell", shell)];

/// What tools do with files, all of it.
fn work(_: &Ground<'_>, _: &Value) -> Value {
    fs::create_dir_all("honest/deep").unwrap();
    fs::write("honest/one", "text").unwrap();
    let mut file = fs::File::options().append(true).open("honest/one").unwrap();
    file.write_all(b" and more").unwrap();
    file.sync_all().unwrap();
    let mut text = String::new();
    fs::File::open("honest/one").unwrap().read_to_string(&mut text).unwrap();
    fs::rename("honest/one", "honest/deep/two").unwrap();
    fs::hard_link("honest/deep/two", "honest/three").unwrap();
    symlink("three", "honest/link").unwrap();
    fs::write("honest/four", fs::read("honest/three").unwrap()).unwrap();
    let names = fs::read_dir("honest").unwrap().count();
    let length = fs::metadata("honest/link").unwrap().len();
    file.set_len(4).unwrap();
    fs::remove_dir_all("honest").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1));
    json!([text, names, length])
}

fn shell(_: &Ground<'_>, script: &Value) -> Value {
    let output = std::process::Command::new("/bin/sh")
        .arg("-c")
        .arg(script.as_str().unwrap())
        .env("PATH", "/usr/bin:/bin")
        .output()
        .unwrap();
    json!([
        output.status.code(),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    ])
}

pub(crate) fn promises() -> Vec<Promise> {
    vec![Promise {
        name: "honest_tools_raise_no_alarm",
        keep: |scene| {
            for profile in scene.profiles() {
                let answer = scene.attack(profile, "work", json!(null));
                assert_eq!(replied(&answer), json!(["text and more", 4, 13]), "{profile}");
                assert!(answer.denials.is_empty(), "{profile}: {:?}", answer.denials);
            }
            let scripts = [
                ("ls -a >/dev/null && pwd && cat inside", "/workspace\ninside"),
                ("printf 'b\\na\\n' | sort | tr '\\n' ' '", "a b "),
                ("mkdir -p x/y && echo 1 > x/y/z && find x -type f && rm -r x", "x/y/z\n"),
                ("grep -c inside inside", "1\n"),
                ("cp inside copy && mv copy moved && sed s/in/out/ moved && rm moved", "outside"),
                ("f=$(mktemp) && echo t > $f && cat $f && rm $f", "t\n"),
                ("(echo one; echo two) | wc -l | tr -d ' '", "2\n"),
                ("ls -l inside | cut -c 1-10", "-rw-r--r--\n"),
                ("ls -lan >/dev/null; ls -ln inside | wc -l", "1\n"),
                ("id -u >/dev/null; id >/dev/null 2>&1; test $(stat -c %s inside) = 6 && echo six", "six\n"),
                ("ln -s inside l && readlink l && cat l && rm l", "inside\ninside"),
                (
                    "mkdir d && cp -r inside d && tar cf d.tar d && tar tf d.tar && rm -r d d.tar",
                    "d/\nd/inside\n",
                ),
                ("gzip -c inside | gunzip -c", "inside"),
                ("diff inside inside && cmp inside inside && head -c 2 inside && tail -c 2 inside", "inde"),
                ("awk 'END { print NR }' inside; printf a | xargs echo; sleep 0; env | wc -l", "1\na\n2\n"),
                (
                    "du -s inside >/dev/null; df . >/dev/null 2>&1; sha256sum inside | cut -c 1-8",
                    "106b0862\n",
                ),
                ("date +%Y > /dev/null; uname > /dev/null; echo $$ > /dev/null", ""),
            ];
            // High isolation bans changes of modes and times.
            let answer = scene.attack(EXEC, "shell", json!("touch t && chmod 640 t && stat -c %a t && rm t"));
            assert_eq!(replied(&answer), json!([0, "640\n", ""]));
            assert!(answer.denials.is_empty(), "{:?}", answer.denials);
            for profile in [EXEC, EXEC_HIGH] {
                if !scene.profiles().contains(&profile) {
                    continue;
                }
                for (script, says) in scripts {
                    let answer = scene.attack(profile, "shell", json!(script));
                    assert_eq!(replied(&answer), json!([0, says, ""]), "{profile}: {script}");
                    assert!(answer.denials.is_empty(), "{profile}: {script}: {:?}", answer.denials);
                }
            }
        },
    }]
}
