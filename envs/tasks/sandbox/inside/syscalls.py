"""System calls by name, with their numbers on x86-64 and aarch64.

A `-` marks a call that does not exist on an architecture. Calls that are in none of the lists fail with ENOSYS, as on a
kernel that does not know them. The few calls that depend on their arguments are handled in `seccomp.py`.
"""

import os

ALLOWED = """
    read:0/63 write:1/64 open:2/- openat:257/56 openat2:437/437 close:3/57 close_range:436/436 stat:4/- fstat:5/80
    lstat:6/- newfstatat:262/79 statx:332/291 poll:7/- ppoll:271/73 lseek:8/62 mmap:9/222 mprotect:10/226
    munmap:11/215 brk:12/214 mremap:25/216 msync:26/227 mincore:27/232 madvise:28/233 rt_sigaction:13/134
    rt_sigprocmask:14/135 rt_sigreturn:15/139 rt_sigpending:127/136 rt_sigtimedwait:128/137 rt_sigsuspend:130/133
    sigaltstack:131/132 ioctl:16/29 pread64:17/67 pwrite64:18/68 readv:19/65 writev:20/66 preadv:295/69
    pwritev:296/70 preadv2:327/286 pwritev2:328/287 access:21/- faccessat:269/48 faccessat2:439/439 pipe:22/-
    pipe2:293/59 select:23/- pselect6:270/72 sched_yield:24/124 dup:32/23 dup2:33/- dup3:292/24 pause:34/-
    nanosleep:35/101 clock_nanosleep:230/115 getitimer:36/102 setitimer:38/103 alarm:37/- getpid:39/172
    gettid:186/178 getppid:110/173 getpgrp:111/- getpgid:121/155 setpgid:109/154 getsid:124/156 setsid:112/157
    sendfile:40/71 copy_file_range:326/285 splice:275/76 tee:276/77 socketpair:53/199 sendto:44/206 recvfrom:45/207
    recvmsg:47/212 shutdown:48/210 getsockopt:55/209 setsockopt:54/208 getsockname:51/204
    getpeername:52/205 recvmmsg:299/243 clone:56/220 fork:57/- vfork:58/- execve:59/221
    execveat:322/281 exit:60/93 exit_group:231/94 wait4:61/260 waitid:247/95 uname:63/160 fcntl:72/25 flock:73/32
    fsync:74/82 fdatasync:75/83 sync_file_range:277/84 ftruncate:77/46 fallocate:285/47 fadvise64:221/223
    getdents:78/- getdents64:217/61 getcwd:79/17 chdir:80/49 fchdir:81/50 rename:82/- renameat:264/38
    renameat2:316/276 mkdir:83/- mkdirat:258/34 rmdir:84/- creat:85/- link:86/- linkat:265/37 unlink:87/-
    unlinkat:263/35 symlink:88/- symlinkat:266/36 readlink:89/- readlinkat:267/78 umask:95/166 gettimeofday:96/169
    time:201/- times:100/153 getrlimit:97/163 setrlimit:160/164 prlimit64:302/261 getrusage:98/165 sysinfo:99/179
    getuid:102/174 geteuid:107/175 getgid:104/176 getegid:108/177 getresuid:118/148 getresgid:120/150
    getgroups:115/158 capget:125/90 statfs:137/43 fstatfs:138/44 prctl:157/167 arch_prctl:158/-
    set_tid_address:218/96 set_robust_list:273/99 get_robust_list:274/100 futex:202/98 futex_waitv:449/449
    rseq:334/293 membarrier:324/283 sched_getaffinity:204/123 sched_getparam:143/121 sched_getscheduler:145/120
    sched_get_priority_max:146/125 sched_get_priority_min:147/126 sched_rr_get_interval:148/127 getpriority:140/141
    getcpu:309/168 clock_gettime:228/113 clock_getres:229/114 timer_create:222/107 timer_settime:223/110
    timer_gettime:224/108 timer_getoverrun:225/109 timer_delete:226/111 timerfd_create:283/85 timerfd_settime:286/86
    timerfd_gettime:287/87 eventfd:284/- eventfd2:290/19 signalfd:282/- signalfd4:289/74 epoll_create:213/-
    epoll_create1:291/20 epoll_ctl:233/21 epoll_wait:232/- epoll_pwait:281/22 epoll_pwait2:441/441 getrandom:318/278
    restart_syscall:219/128 getxattr:191/8 lgetxattr:192/9 fgetxattr:193/10 listxattr:194/11 llistxattr:195/12
    flistxattr:196/13 kill:62/129 tkill:200/130 tgkill:234/131
"""

# These fail with EPERM: ordinary programs try them and can do without. With sendmsg, a program could hide open files in
# a socket, where nobody counts them.
DENIED = """
    truncate:76/45 socket:41/198 connect:42/203 bind:49/200 listen:50/201 accept:43/202 accept4:288/242 chmod:90/-
    fchmod:91/52 fchmodat:268/53 chown:92/- fchown:93/55 lchown:94/- fchownat:260/54 utime:132/- utimes:235/-
    futimesat:261/- utimensat:280/88 setxattr:188/5 lsetxattr:189/6 fsetxattr:190/7 removexattr:197/14
    lremovexattr:198/15 fremovexattr:199/16 setuid:105/146 setgid:106/144 setreuid:113/145 setregid:114/143
    setresuid:117/147 setresgid:119/149 setfsuid:122/151 setfsgid:123/152 setgroups:116/159 capset:126/91
    setpriority:141/140 ioprio_set:251/30 ioprio_get:252/31 sched_setaffinity:203/122 sched_setparam:142/118
    sched_setscheduler:144/119 sched_setattr:314/274 mknod:133/- mknodat:259/33 chroot:161/51
    rt_sigqueueinfo:129/138 rt_tgsigqueueinfo:297/240 pidfd_send_signal:424/424 pidfd_getfd:438/438 mlockall:151/230
    sethostname:170/161 setdomainname:171/162 sync:162/81 syncfs:306/267
    fchmodat2:452/452 sendmsg:46/211 sendmmsg:307/269
"""

# No program needs these to solve a problem: an attempt kills it, and the worker is replaced.
FATAL = """
    ptrace:101/117 process_vm_readv:310/270 process_vm_writev:311/271 unshare:272/97 setns:308/268 mount:165/40
    umount2:166/39 pivot_root:155/41 open_tree:428/428 move_mount:429/429 fsopen:430/430 fsmount:432/432
    fsconfig:431/431 fspick:433/433 mount_setattr:442/442 io_uring_setup:425/425 io_uring_enter:426/426
    io_uring_register:427/427 bpf:321/280 perf_event_open:298/241 userfaultfd:323/282 keyctl:250/219 add_key:248/217
    request_key:249/218 init_module:175/105 finit_module:313/273 delete_module:176/106 kexec_load:246/104
    kexec_file_load:320/294 reboot:169/142 swapon:167/224 swapoff:168/225 open_by_handle_at:304/265 kcmp:312/272
    acct:163/89 quotactl:179/60 settimeofday:164/170 clock_settime:227/112 adjtimex:159/171 clock_adjtime:305/266
    iopl:172/- ioperm:173/- lookup_dcookie:212/18 vhangup:153/58 process_madvise:440/440
"""

MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of the tables, AUDIT_ARCH


def machine() -> tuple[int, int] | None:
    """Return the table column and audit architecture of this machine, or None if unsupported."""
    return MACHINES.get(os.uname().machine)


def numbers(table: str, column: int) -> dict[str, int]:
    """Return the numbers by name of one of the tables above."""
    found = {}
    for entry in table.split():
        name, both = entry.split(":")
        number = both.split("/")[column]
        if number != "-":
            found[name] = int(number)
    return found
