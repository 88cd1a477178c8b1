/* A load client: one thread, as quick as one thread gets. Prints what it measured as JSON.
 *
 *   client --port P --bodies FILE [--path /v1/chat/completions] [--header "name: value"]
 *          --connections N (--seconds S [--warmup S] | --rate R --requests N [--window FROM,TO] [--tokens N])
 *
 * With --seconds, a closed loop: each of N connections asks again as soon as it is answered; answers a second.
 * With --rate, an open loop: the requests start at moments laid down beforehand (Poisson, the same in each run), each on a
 * connection that is free, or on a new one, whatever became of the others; a request that finds none of N free is late, and
 * the time it waits counts. Times to the first token are from the moment laid down. The delay of a token is from the moment
 * that the engine wrote into it to the moment that it was read here.
 *
 * FILE: bodies, one a line, sent in turn; "@@@@@@@@" in a body becomes a number that no other request has.
 * A request is in error if it has another status than 200, breaks off, or brings fewer tokens than --tokens.
 */
#include "common.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/types.h>
#include <unistd.h>

#define MARK "@@@@@@@@"

struct text {
    char *data;
    size_t length, mark;
};

struct connection {
    int fd, asking, wants_write, in_head, status, closing, tokens, events_stream;
    struct buffer out, in, text;
    struct body body;
    int64_t start;
    struct connection *next;
};

struct series {
    float *values;
    size_t length, room;
};

static const char *path = "/v1/chat/completions", *header = "";
static int port, connections = 32, open_loop, want_tokens;
static double seconds = 0, warmup = 0.5, rate = 0, window_from = 0, window_to = 1e9;
static long wanted = 0;
static struct text *bodies;
static size_t body_count;
static struct connection *idle, *all;
static int poller, alive;
static unsigned long serial, started, finished, peak_open, now_open, seen_tokens;
static unsigned long refused, broken, short_streams, bad_status[600];
static struct series first_token, token_delay, whole;
static int64_t begin, measure_from, measure_to;
static int measuring;
static char first_error[512];

static void record(struct series *s, int64_t value) {
    if (s->length == s->room) {
        s->room = s->room ? s->room * 2 : 4096;
        s->values = realloc(s->values, s->room * sizeof *s->values);
        if (!s->values) die("realloc");
    }
    s->values[s->length++] = (float)value;
}

static void read_bodies(const char *name) {
    FILE *file = fopen(name, "r");
    if (!file) die(name);
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    while ((n = getline(&line, &room, file)) > 0) {
        if (line[n - 1] == '\n') n--;
        if (!n) continue;
        bodies = realloc(bodies, (body_count + 1) * sizeof *bodies);
        char *head = malloc((size_t)n + 512);
        if (!bodies || !head) die("malloc");
        int k = snprintf(head, 512, "POST %s HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\n%s%scontent-length: %zd\r\n\r\n",
            path, port, header, *header ? "\r\n" : "", n);
        memcpy(head + k, line, (size_t)n);
        struct text *one = &bodies[body_count++];
        *one = (struct text){.data = head, .length = (size_t)(k + n)};
        char *mark = memmem(head, one->length, MARK, 8);
        one->mark = mark ? (size_t)(mark - head) : 0;
    }
    free(line);
    fclose(file);
    if (!body_count) {
        fprintf(stderr, "client: %s has no bodies\n", name);
        exit(2);
    }
}

static void watch(struct connection *c, int how) {
    struct epoll_event event = {.events = EPOLLIN | (c->wants_write ? EPOLLOUT : 0), .data.ptr = c};
    if (epoll_ctl(poller, how, c->fd, &event) < 0) die("epoll_ctl");
}

static void ask(struct connection *c, int64_t start);

/* A new connection, or one that was lost, made anew. Connecting to the loopback does not wait. */
static int call(struct connection *c) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0) die("socket");
    int on = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(c->fd, (struct sockaddr *)&at, sizeof at) < 0) {
        close(c->fd);
        c->fd = -1;
        refused++;
        return 0;
    }
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    c->wants_write = 0;
    c->in.length = c->out.length = 0;
    watch(c, EPOLL_CTL_ADD);
    return 1;
}

static void flush(struct connection *c) {
    size_t done = 0;
    while (done < c->out.length) {
        ssize_t n = send(c->fd, c->out.data + done, c->out.length - done, MSG_NOSIGNAL);
        if (n > 0) done += (size_t)n;
        else if (n < 0 && errno == EINTR) continue;
        else break; /* a broken connection shows when it is read */
    }
    consume(&c->out, done);
    int wants = c->out.length > 0;
    if (wants != c->wants_write) {
        c->wants_write = wants;
        watch(c, EPOLL_CTL_MOD);
    }
    if (!wants && open_loop) release(&c->out);
}

static void ask(struct connection *c, int64_t start) {
    if (c->fd < 0 && !call(c)) {
        c->next = idle;
        idle = c;
        finished++;
        return;
    }
    const struct text *body = &bodies[serial % body_count];
    c->out.length = 0;
    append(&c->out, body->data, body->length);
    if (body->mark) {
        char digits[9];
        snprintf(digits, sizeof digits, "%08lx", (serial * 2654435761ul) & 0xffffffff);
        memcpy(c->out.data + body->mark, digits, 8);
    }
    serial++;
    started++;
    c->asking = 1;
    c->in_head = 1;
    c->status = c->tokens = 0;
    c->start = start;
    c->text.length = 0;
    if (++now_open > peak_open) peak_open = now_open;
    flush(c);
}

static void note_error(const char *what, const struct connection *c) {
    if (*first_error) return;
    size_t n = (size_t)snprintf(first_error, sizeof first_error, "%s %d: ", what, c->status);
    for (size_t i = 0; i < c->text.length && n + 2 < sizeof first_error && i < 300; i++) {
        char ch = c->text.data[i];
        first_error[n++] = ch < ' ' || ch == '"' || ch == '\\' || ch & 0x80 ? ' ' : ch;
    }
    first_error[n] = 0;
}

static void finish(struct connection *c, int lost) {
    int64_t now = now_us();
    c->asking = 0;
    now_open--;
    finished++;
    if (lost) { broken++; note_error("broken off", c); }
    else if (c->status != 200) { bad_status[c->status % 600]++; note_error("status", c); }
    else if (want_tokens && c->tokens < want_tokens) { short_streams++; note_error("too few tokens", c); }
    else if (measuring) record(&whole, now - c->start);
    if (lost || c->closing) {
        close(c->fd);
        c->fd = -1;
    }
    if (open_loop) release(&c->text);
    if (!open_loop && alive && !(lost && c->tokens == 0 && broken > 100000)) {
        ask(c, now);
        return;
    }
    c->next = idle;
    idle = c;
}

/* Reads the events that have come whole. A token is an event with some content. */
static void read_events(struct connection *c, int64_t now) {
    char *at = c->text.data, *end = at + c->text.length, *stop;
    while ((stop = memchr(at, '\n', (size_t)(end - at)))) {
        size_t n = (size_t)(stop - at);
        char *content = n > 20 ? memmem(at, n, "\"content\":", 10) : NULL;
        if (content) {
            content += 10;
            while (content < stop && *content == ' ') content++;
            if (stop - content > 2 && content[0] == '"' && content[1] != '"') {
                c->tokens++;
                seen_tokens++;
                double elapsed = (double)(now - begin) / 1e6;
                int counts = measuring && elapsed >= window_from && elapsed <= window_to;
                if (c->tokens == 1 && counts) record(&first_token, now - c->start);
                if (content[1] == '~' && counts && c->tokens > 1) record(&token_delay, now - strtol(content + 2, NULL, 10));
            }
        }
        at = stop + 1;
    }
    consume(&c->text, (size_t)(at - c->text.data));
    if (!c->text.length) release(&c->text);
}

static void receive(struct connection *c) {
    static char data[262144];
    for (;;) {
        ssize_t n = recv(c->fd, data, sizeof data, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) {
            if (c->asking) {
                if (!c->in_head && c->body.framing == UNTIL_CLOSE && n == 0) {
                    c->closing = 1;
                    finish(c, 0);
                } else finish(c, 1);
            } else {
                close(c->fd); /* an idle one that the other side has had enough of: no error */
                c->fd = -1;
            }
            return;
        }
        int64_t now = now_us();
        append(&c->in, data, (size_t)n);
        if (!c->asking) { broken++; close(c->fd); c->fd = -1; return; }
        while (c->asking && c->in.length) {
            if (c->in_head) {
                char *end = memmem(c->in.data, c->in.length, "\r\n\r\n", 4);
                if (!end) break;
                size_t k = (size_t)(end - c->in.data) + 4, type;
                c->status = c->in.length > 12 ? atoi(c->in.data + 9) : 0;
                if (c->status == 100) { consume(&c->in, k); continue; }
                c->body = body_after(c->in.data, k, UNTIL_CLOSE);
                c->closing = says_close(c->in.data, k);
                const char *value = field(c->in.data, k, "content-type", &type);
                c->events_stream = value && type >= 17 && strncasecmp(value, "text/event-stream", 17) == 0;
                consume(&c->in, k);
                c->in_head = 0;
            }
            ssize_t used = read_body(&c->body, c->in.data, c->in.length, &c->text);
            if (used < 0) { finish(c, 1); return; }
            consume(&c->in, (size_t)used);
            if (c->events_stream) read_events(c, now);
            if (c->body.done) { finish(c, 0); if (c->fd < 0) return; break; }
            if (!used) break;
        }
        if (open_loop && c->fd >= 0 && !c->in.length) release(&c->in);
        if ((size_t)n < sizeof data) return;
    }
}

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void print_series(const char *name, struct series *s) {
    qsort(s->values, s->length, sizeof *s->values, by_size);
    double sum = 0;
    for (size_t i = 0; i < s->length; i++) sum += s->values[i];
#define AT(q) (s->length ? s->values[(size_t)((double)(s->length - 1) * (q))] : 0.0)
    printf(", \"%s\": {\"n\": %zu, \"mean\": %.1f, \"p50\": %.0f, \"p90\": %.0f, \"p99\": %.0f, \"max\": %.0f}", name, s->length,
        s->length ? sum / (double)s->length : 0.0, AT(0.5), AT(0.9), AT(0.99), AT(1.0));
}

static uint64_t dice = 88172645463325252ull;
static double uniform(void) {
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return ((double)(dice >> 11) + 0.5) / 9007199254740992.0;
}

int main(int argc, char **argv) {
    const char *file = NULL;
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (!strcmp(name, "--port")) port = atoi(value);
        else if (!strcmp(name, "--bodies")) file = value;
        else if (!strcmp(name, "--path")) path = value;
        else if (!strcmp(name, "--header")) header = value;
        else if (!strcmp(name, "--connections")) connections = atoi(value);
        else if (!strcmp(name, "--seconds")) seconds = atof(value);
        else if (!strcmp(name, "--warmup")) warmup = atof(value);
        else if (!strcmp(name, "--rate")) rate = atof(value);
        else if (!strcmp(name, "--requests")) wanted = atol(value);
        else if (!strcmp(name, "--tokens")) want_tokens = atoi(value);
        else if (!strcmp(name, "--first-number")) serial = strtoul(value, NULL, 10);
        else if (!strcmp(name, "--window")) sscanf(value, "%lf,%lf", &window_from, &window_to);
        else {
            fprintf(stderr, "client: unknown option %s\n", name);
            return 2;
        }
    }
    if (!file || !port || (seconds <= 0 && (rate <= 0 || wanted <= 0))) {
        fprintf(stderr, "client: --port, --bodies, and --seconds or --rate and --requests are needed\n");
        return 2;
    }
    open_loop = rate > 0;
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    signal(SIGPIPE, SIG_IGN);
    read_bodies(file);
    poller = epoll_create1(EPOLL_CLOEXEC);
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event wake = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(poller, EPOLL_CTL_ADD, timer, &wake);
    all = calloc((size_t)connections, sizeof *all);
    if (!all) die("calloc");
    for (int i = connections - 1; i >= 0; i--) {
        all[i].fd = -1;
        all[i].next = idle;
        idle = &all[i];
    }
    begin = now_us();
    alive = 1;
    measuring = open_loop;
    measure_from = begin + (int64_t)(warmup * 1e6);
    measure_to = measure_from + (int64_t)(seconds * 1e6);
    unsigned long at_start = 0, at_end = 0;
    int64_t due = begin, give_up = INT64_MAX;
    long scheduled = 0;
    if (!open_loop) {
        while (idle) {
            struct connection *c = idle;
            idle = c->next;
            ask(c, now_us());
            if (refused) {
                fprintf(stderr, "client: nobody listens at port %d\n", port);
                return 2;
            }
        }
    }
    static struct epoll_event events[1024];
    for (;;) {
        int64_t now = now_us();
        int wait = 100;
        if (open_loop) {
            while (scheduled < wanted && due <= now && idle) {
                struct connection *c = idle;
                idle = c->next;
                ask(c, due);
                scheduled++;
                due += (int64_t)(-log(uniform()) / rate * 1e6);
            }
            if (scheduled == wanted && finished >= (unsigned long)wanted) break;
            if (scheduled == wanted && give_up == INT64_MAX) give_up = now + 120 * 1000000ll;
            if (now > give_up) break;
            if (scheduled < wanted && due > now) {
                struct itimerspec when = {.it_value = {.tv_sec = due / 1000000, .tv_nsec = due % 1000000 * 1000}};
                timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
            }
        } else {
            if (!measuring && now >= measure_from) { measuring = 1; at_start = finished; measure_from = now; }
            if (measuring && now >= measure_to) { at_end = finished; measure_to = now; break; }
            wait = 1;
        }
        int n = epoll_wait(poller, events, 1024, wait);
        if (n < 0 && errno != EINTR) die("epoll_wait");
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            if (!c) {
                uint64_t times;
                if (read(timer, &times, sizeof times) < 0 && errno != EAGAIN) die("timer");
                continue;
            }
            if (c->fd >= 0 && events[i].events & EPOLLOUT) flush(c);
            if (c->fd >= 0 && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(c);
        }
    }
    double took = open_loop ? (double)(now_us() - begin) / 1e6 : (double)(measure_to - measure_from) / 1e6;
    unsigned long done = open_loop ? finished : at_end - at_start, statuses = 0;
    for (int i = 0; i < 600; i++) statuses += bad_status[i];
    unsigned long unfinished = open_loop ? (unsigned long)wanted - finished : 0;
    printf("{\"requests\": %lu, \"seconds\": %.4f, \"per_second\": %.2f, \"tokens\": %lu, \"peak_open\": %lu, \"next_number\": %lu, "
        "\"errors\": {\"refused\": %lu, \"broken\": %lu, \"short\": %lu, \"unfinished\": %lu, \"status\": %lu}, \"first_error\": \"%s\"",
        done, took, (double)done / took, seen_tokens, peak_open, serial, refused, broken, short_streams, unfinished, statuses, first_error);
    print_series("first_token_us", &first_token);
    print_series("token_delay_us", &token_delay);
    print_series("whole_us", &whole);
    printf("}\n");
    return 0;
}
