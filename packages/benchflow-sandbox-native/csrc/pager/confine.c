/* Allow only a few system calls: images and messages come from sandboxes, which may be hostile. */
#include "pager.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#else
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

static const int allowed[] = {
    SYS_read,    SYS_pread64, SYS_write,      SYS_ioctl,  SYS_close,      SYS_openat,
    SYS_ppoll,   SYS_recvmsg, SYS_accept4,    SYS_brk,    SYS_mmap,       SYS_munmap,
    SYS_mremap,  SYS_madvise, SYS_pidfd_open, SYS_exit,   SYS_exit_group, SYS_restart_syscall,
    SYS_fstat,   SYS_getrandom,
#ifdef SYS_newfstatat
    SYS_newfstatat,
#endif
#ifdef SYS_poll
    SYS_poll,
#endif
};
enum { COUNT = sizeof allowed / sizeof *allowed };

void confine(void)
{
    struct sock_filter filter[COUNT + 5];
    unsigned short at = 0;
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                                                offsetof(struct seccomp_data, arch));
    filter[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 0,
                                                COUNT + 1);
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                                                offsetof(struct seccomp_data, nr));
    for (int i = 0; i < COUNT; i++)
        filter[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
                                                    (unsigned int)allowed[i],
                                                    (unsigned char)(COUNT - i), 0);
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {at, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        end(EXIT_LOST);
}
