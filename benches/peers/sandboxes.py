"""Programs that confine one command: how many calls a second. The command writes its input into a small file and syncs it."""

import os
import subprocess
import sys

import loop


def writer(name):
    return ["dd", "of=" + name, "conv=fsync", "status=none"]


def bare(program, folder, name):
    """The same command without any sandbox."""
    return writer(os.path.join(folder, name))


def bubblewrap(program, folder, name):
    """New namespaces for all that there are, the system read-only, one folder to write to."""
    return [
        program, "--unshare-all", "--die-with-parent", "--new-session",
        "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib",
        "--symlink", "usr/lib64", "/lib64", "--bind", folder, "/space", "--chdir", "/space",
        *writer(name),
    ]  # fmt: skip


def firejail(program, folder, name):
    """No network, no capabilities, the default system call filter, one folder to write to."""
    return [
        program, "--quiet", "--noprofile", "--net=none", "--caps.drop=all", "--nonewprivs", "--seccomp",
        "--read-only=/", "--read-write=" + folder, *writer(os.path.join(folder, name)),
    ]  # fmt: skip


KINDS = {"spawn": bare, "bubblewrap": bubblewrap, "firejail": firejail}


def main():
    kind, program, version, folder = sys.argv[1:5]
    seconds, depths = loop.settings()
    text = loop.message("sandbox")["params"]["text"].encode()

    def one(lane, turn):
        command = KINDS[kind](program, folder, "%s-%d.txt" % (kind, lane))
        subprocess.run(command, input=text, check=True)

    for depth in depths:
        times = loop.threads(depth, seconds, one)
        with open(os.path.join(folder, kind + "-0.txt"), "rb") as file:
            assert file.read() == text, "the file was not written"
        loop.report(kind, version, "sandbox call", depth, seconds, times)


if __name__ == "__main__":
    main()
