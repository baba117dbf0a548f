/* The socket below HOME, which only root of the sandbox can reach. */
#include "link.h"

#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

int listen_setup(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = SOCKET};
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    unlink(SOCKET);
    if (listener < 0 || bind(listener, (const struct sockaddr *)&address, sizeof address) < 0 ||
        chmod(SOCKET, 0600) < 0 || listen(listener, 8) < 0)
        fail(SOCKET);
    return listener;
}

int listen_accept(int listener)
{
    return accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
}
