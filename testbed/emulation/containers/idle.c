/* The first process of a container in which nothing runs but what is put there.

   It waits until it is told to end, and takes in the orphans of what ran there. Any image can hold it, be it without a
   shell: it is linked statically, and mounted. */
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
