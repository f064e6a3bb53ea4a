/* The first process of an idle container, in which programs are started later.

   It waits for SIGTERM and reaps orphaned processes. It is linked statically and mounted, so it runs in any image,
   even one without a shell. */
#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>

int main(void)
{
    sigset_t heard;
    sigemptyset(&heard);
    sigaddset(&heard, SIGCHLD);
    sigaddset(&heard, SIGTERM);
    sigprocmask(SIG_BLOCK, &heard, NULL);
    for (;;) {
        if (sigwaitinfo(&heard, NULL) == SIGTERM)
            return 0;
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
    }
}
