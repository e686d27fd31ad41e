//! The names of the system calls of x86_64, so that profiles are written with names and not with numbers.
//!
//! A number that is missing here is unknown to every profile, and is therefore refused.

use std::sync::LazyLock;

/// Each line is a number, and the names of the calls from that number on.
const TABLE: &str = "\
0 read write open close stat fstat lstat poll lseek mmap mprotect munmap brk rt_sigaction
14 rt_sigprocmask rt_sigreturn ioctl pread64 pwrite64 readv writev access pipe select sched_yield
25 mremap msync mincore madvise shmget shmat shmctl dup dup2 pause nanosleep getitimer alarm
38 setitimer getpid sendfile socket connect accept sendto recvfrom sendmsg recvmsg shutdown bind
50 listen getsockname getpeername socketpair setsockopt getsockopt clone fork vfork execve exit wait4
62 kill uname semget semop semctl shmdt msgget msgsnd msgrcv msgctl fcntl flock fsync fdatasync
76 truncate ftruncate getdents getcwd chdir fchdir rename mkdir rmdir creat link unlink symlink
89 readlink chmod fchmod chown fchown lchown umask gettimeofday getrlimit getrusage sysinfo times
101 ptrace getuid syslog getgid setuid setgid geteuid getegid setpgid getppid getpgrp setsid setreuid
114 setregid getgroups setgroups setresuid getresuid setresgid getresgid getpgid setfsuid setfsgid
124 getsid capget capset rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_sigsuspend sigaltstack utime
133 mknod uselib personality ustat statfs fstatfs sysfs getpriority setpriority sched_setparam
143 sched_getparam sched_setscheduler sched_getscheduler sched_get_priority_max sched_get_priority_min
148 sched_rr_get_interval mlock munlock mlockall munlockall vhangup modify_ldt pivot_root _sysctl
157 prctl arch_prctl adjtimex setrlimit chroot sync acct settimeofday mount umount2 swapon swapoff
169 reboot sethostname setdomainname iopl ioperm create_module init_module delete_module
177 get_kernel_syms query_module quotactl nfsservctl getpmsg putpmsg afs_syscall tuxcall security
186 gettid readahead setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr
196 flistxattr removexattr lremovexattr fremovexattr tkill time futex sched_setaffinity
204 sched_getaffinity set_thread_area io_setup io_destroy io_getevents io_submit io_cancel
211 get_thread_area lookup_dcookie epoll_create epoll_ctl_old epoll_wait_old remap_file_pages
217 getdents64 set_tid_address restart_syscall semtimedop fadvise64 timer_create timer_settime
224 timer_gettime timer_getoverrun timer_delete clock_settime clock_gettime clock_getres
230 clock_nanosleep exit_group epoll_wait epoll_ctl tgkill utimes vserver mbind set_mempolicy
239 get_mempolicy mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr kexec_load
247 waitid add_key request_key keyctl ioprio_set ioprio_get inotify_init inotify_add_watch
255 inotify_rm_watch migrate_pages openat mkdirat mknodat fchownat futimesat newfstatat unlinkat
264 renameat linkat symlinkat readlinkat fchmodat faccessat pselect6 ppoll unshare set_robust_list
274 get_robust_list splice tee sync_file_range vmsplice move_pages utimensat epoll_pwait signalfd
283 timerfd_create eventfd fallocate timerfd_settime timerfd_gettime accept4 signalfd4 eventfd2
291 epoll_create1 dup3 pipe2 inotify_init1 preadv pwritev rt_tgsigqueueinfo perf_event_open recvmmsg
300 fanotify_init fanotify_mark prlimit64 name_to_handle_at open_by_handle_at clock_adjtime syncfs
307 sendmmsg setns getcpu process_vm_readv process_vm_writev kcmp finit_module sched_setattr
315 sched_getattr renameat2 seccomp getrandom memfd_create kexec_file_load bpf execveat userfaultfd
324 membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect pkey_alloc pkey_free statx
333 io_pgetevents rseq
424 pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen
431 fsconfig fsmount fspick pidfd_open clone3 close_range openat2 pidfd_getfd faccessat2
440 process_madvise epoll_pwait2 mount_setattr quotactl_fd landlock_create_ruleset landlock_add_rule
446 landlock_restrict_self memfd_secret process_mrelease futex_waitv set_mempolicy_home_node cachestat
452 fchmodat2 map_shadow_stack futex_wake futex_wait futex_requeue statmount listmount
459 lsm_get_self_attr lsm_set_self_attr lsm_list_modules mseal setxattrat getxattrat listxattrat
466 removexattrat open_tree_attr file_getattr file_setattr
";

/// Names with their numbers, sorted by number.
static CALLS: LazyLock<Vec<(&str, u32)>> = LazyLock::new(|| {
    let lines = TABLE.lines().filter_map(|line| line.split_once(' '));
    let numbered = lines.flat_map(|(first, names)| names.split(' ').zip(first.parse().unwrap_or(u32::MAX)..));
    numbered.collect()
});

/// The first number after all known ones.
pub(crate) const NUMBER_END: u32 = 470;

pub(crate) fn number(name: &str) -> Option<u32> {
    let found = CALLS.iter().find(|(known, _)| *known == name);
    found.map(|(_, number)| *number)
}

/// The name of a system call, or its number where it has no name.
pub(crate) fn name(number: u32) -> String {
    let found = CALLS.binary_search_by_key(&number, |(_, known)| *known);
    found.map_or_else(|_| format!("syscall {number}"), |at| CALLS[at].0.to_owned())
}

pub(crate) fn numbers() -> impl Iterator<Item = u32> {
    CALLS.iter().map(|(_, number)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_one_gap_and_ends_where_it_says() {
        // The kernel's own table has no calls from 335 to 423.
        let follows =
            |pair: &[(&str, u32)]| pair[0].1 + 1 == pair[1].1 || (pair[0].1, pair[1].1) == (334, 424);
        assert!(CALLS.windows(2).all(follows));
        assert_eq!((CALLS.len(), CALLS[0].1), (381, 0));
        assert_eq!(CALLS.last().map(|(_, number)| number + 1), Some(NUMBER_END));
    }

    #[test]
    fn numbers_are_those_of_the_kernel_headers() {
        for (name_here, known) in
            [("read", libc::SYS_read), ("socket", libc::SYS_socket), ("openat2", libc::SYS_openat2)]
        {
            assert_eq!(number(name_here).map(i64::from), Some(known));
            assert_eq!(name(known as u32), name_here);
        }
        assert_eq!(name(9_999), "syscall 9999");
    }
}
