/* Lets an engine listen on this machine only: TCP sockets that it binds to all addresses are bound to the loopback.
   Some of an engine's sockets cannot be given an address: those of its events, and of PyTorch's rendezvous. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

static const unsigned char MAPPED[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};

int bind(int socket, const struct sockaddr *address, socklen_t length) {
    int (*next)(int, const struct sockaddr *, socklen_t) =
        (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "bind");
    int type = 0;
    socklen_t size = sizeof type;
    if (getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM || address == NULL)
        return next(socket, address, length);
    if (address->sa_family == AF_INET && length >= sizeof(struct sockaddr_in)) {
        struct sockaddr_in four;
        memcpy(&four, address, sizeof four);
        if (four.sin_addr.s_addr == htonl(INADDR_ANY)) four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        return next(socket, (const struct sockaddr *)&four, sizeof four);
    }
    if (address->sa_family == AF_INET6 && length >= sizeof(struct sockaddr_in6)) {
        struct sockaddr_in6 six;
        int only = 0;
        memcpy(&six, address, sizeof six);
        size = sizeof only;
        getsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &only, &size);
        if (IN6_IS_ADDR_UNSPECIFIED(&six.sin6_addr)) {
            if (only) six.sin6_addr = in6addr_loopback;
            else memcpy(&six.sin6_addr, MAPPED, sizeof MAPPED);
        }
        return next(socket, (const struct sockaddr *)&six, sizeof six);
    }
    return next(socket, address, length);
}
