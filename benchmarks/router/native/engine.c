/* A fake engine, as quick as one thread gets: answers like vLLM's and SGLang's servers, computes nothing.
 *
 *   engine --ports 9001,9002 [--model NAME] [--interval-us N] [--events 5557:5657,5558:5658]
 *
 * Each port is an engine of its own as far as a router can see. POST /v1/chat/completions and /v1/completions answer at
 * once; streamed, `max_tokens` tokens (16 if the request says nothing) come one after the other, the first one at once and
 * the others an interval apart. The text of each token is "~" and the microsecond of the monotonic clock at which it was
 * sent, for the client to tell how long it took. GET /control?interval_us=N changes the interval.
 * A token is four bytes of the prompt's text: /tokenize and .../render say which.
 */
#include "common.h"

#include <stdarg.h>
#include <sys/types.h>

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define LISTENERS 64

struct connection {
    int fd, port, closing, busy, wants_write;
    struct buffer in, out, text; /* received; not sent yet; the body of the request */
    struct body body;
    int in_body;
    char line[256]; /* the request's first line */
    /* A stream that goes on: the tokens left, when the next one is due, and the next stream in the queue. */
    int left, usage, chat, sent;
    size_t prompt_tokens;
    int64_t due;
    struct connection *next, *previous;
    int queued;
};

static const char *model = "model";
static int64_t interval = 0;
static int poller, timer;
static struct connection *first, *last; /* streams by the time of their next token: the interval is the same for all */
static struct connection *dead;
static unsigned long requests, tokens, opened, running;
static int listeners[LISTENERS], ports[LISTENERS], count;
static char *events_at[LISTENERS]; /* "PORT:PORT" of each engine: its events, and their replays */

static void unqueue(struct connection *c) {
    if (!c->queued) return;
    if (c->previous) c->previous->next = c->next; else first = c->next;
    if (c->next) c->next->previous = c->previous; else last = c->previous;
    c->next = c->previous = NULL;
    c->queued = 0;
}

/* The interval may have become shorter: then the new one has to go before those that wait longer. */
static void enqueue(struct connection *c) {
    struct connection *before = last;
    while (before && before->due > c->due) before = before->previous;
    c->previous = before;
    c->next = before ? before->next : first;
    if (c->next) c->next->previous = c; else last = c;
    if (before) before->next = c; else first = c;
    c->queued = 1;
}

static void hang_up(struct connection *c) {
    if (c->fd < 0) return;
    unqueue(c);
    if (c->left) running--;
    close(c->fd);
    c->fd = -1;
    c->next = dead; /* freed when no event of this turn can name it any more */
    dead = c;
}

static void flush(struct connection *c) {
    size_t done = 0;
    while (done < c->out.length) {
        ssize_t n = send(c->fd, c->out.data + done, c->out.length - done, MSG_NOSIGNAL);
        if (n > 0) { done += (size_t)n; continue; }
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) break;
        hang_up(c);
        return;
    }
    consume(&c->out, done);
    int wants = c->out.length > 0;
    if (wants != c->wants_write) {
        struct epoll_event event = {.events = EPOLLIN | (wants ? EPOLLOUT : 0), .data.ptr = c};
        epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event);
        c->wants_write = wants;
    }
    if (!wants && c->left) release(&c->out);
    if (!wants && c->closing && !c->left) hang_up(c);
}

static void say(struct connection *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(struct connection *c, const char *format, ...) {
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    append(&c->out, line, (size_t)n);
}

static void answer(struct connection *c, const char *status, const char *type, const char *body, size_t length) {
    say(c, "HTTP/1.1 %s\r\ncontent-type: %s\r\ncontent-length: %zu\r\n\r\n", status, type, length);
    append(&c->out, body, length);
}

static void event(struct connection *c, const char *payload, size_t length) {
    char size[16];
    append(&c->out, size, (size_t)snprintf(size, sizeof size, "%zx\r\n", length + 8));
    append(&c->out, "data: ", 6);
    append(&c->out, payload, length);
    append(&c->out, "\n\n\r\n", 4);
}

static void piece(struct connection *c, const char *delta, const char *finish) {
    char text[512];
    int n = c->chat
        ? snprintf(text, sizeof text, "{\"id\":\"chatcmpl-%lu\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,"
            "\"model\":\"%s\",\"choices\":[{\"index\":0,\"delta\":{%s},\"logprobs\":null,\"finish_reason\":%s}]}",
            requests, model, delta, finish)
        : snprintf(text, sizeof text, "{\"id\":\"cmpl-%lu\",\"object\":\"text_completion\",\"created\":1700000000,"
            "\"model\":\"%s\",\"choices\":[{\"index\":0,%s%s\"logprobs\":null,\"finish_reason\":%s}]}",
            requests, model, delta, *delta ? "," : "\"text\":\"\",", finish);
    event(c, text, (size_t)n);
}

/* One more token of a stream, and its end after the last one. */
static void token(struct connection *c, int64_t now) {
    char delta[64];
    snprintf(delta, sizeof delta, c->chat ? "\"content\":\"~%ld \"" : "\"text\":\"~%ld \"", (long)now);
    piece(c, delta, "null");
    tokens++;
    c->sent++;
    c->left--;
    if (c->left) {
        c->due = now + interval;
        enqueue(c);
    } else {
        piece(c, "", "\"length\"");
        if (c->usage) {
            char text[512];
            int n = snprintf(text, sizeof text, "{\"id\":\"%s-%lu\",\"object\":\"%s\",\"created\":1700000000,\"model\":\"%s\","
                "\"choices\":[],\"usage\":{\"prompt_tokens\":%zu,\"total_tokens\":%zu,\"completion_tokens\":%d,"
                "\"prompt_tokens_details\":{\"cached_tokens\":0}}}", c->chat ? "chatcmpl" : "cmpl", requests,
                c->chat ? "chat.completion.chunk" : "text_completion", model, c->prompt_tokens,
                c->prompt_tokens + (size_t)c->sent, c->sent);
            event(c, text, (size_t)n);
        }
        say(c, "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
        running--;
        c->busy = 0;
    }
    flush(c);
}

static const char *find(const struct buffer *text, const char *name) {
    return memmem(text->data, text->length, name, strlen(name));
}

/* The number after a key. */
static long number(const struct buffer *text, const char *key, long otherwise) {
    const char *at = find(text, key);
    if (!at) return otherwise;
    at += strlen(key);
    while (at < text->data + text->length && (*at == ' ' || *at == ':')) at++;
    return at < text->data + text->length && *at >= '0' && *at <= '9' ? strtol(at, NULL, 10) : otherwise;
}

static int flag(const struct buffer *text, const char *key) {
    const char *at = find(text, key);
    if (!at) return 0;
    at += strlen(key);
    const char *end = text->data + text->length;
    while (at < end && (*at == ' ' || *at == ':')) at++;
    return end - at >= 4 && memcmp(at, "true", 4) == 0;
}

/* The prompt's tokens: each four bytes of its text, as it stands in the JSON, are one. */
static void tokenise(const struct buffer *text, struct buffer *ids) {
    const char *at = text->data, *end = at + text->length;
    int first_one = 1;
    append(ids, "[", 1);
    while (at < end) {
        const char *content = memmem(at, (size_t)(end - at), "\"content\"", 9), *prompt = memmem(at, (size_t)(end - at), "\"prompt\"", 8);
        const char *key = !content || (prompt && prompt < content) ? prompt : content;
        if (!key) break;
        at = memchr(key + 8, ':', (size_t)(end - key - 8));
        if (!at) break;
        at++;
        while (at < end && *at == ' ') at++;
        if (at == end || *at != '"') continue;
        const char *start = ++at;
        while (at < end && *at != '"') at += *at == '\\' ? 2 : 1;
        for (const char *p = start; p + 4 <= at && p + 4 <= end; p += 4) {
            uint32_t id;
            memcpy(&id, p, 4);
            id = (id * 2654435761u) >> 15; /* 17 bits: the size of a vocabulary */
            char digits[12], *d = digits + sizeof digits;
            do *--d = (char)('0' + id % 10); while (id /= 10);
            if (!first_one) *--d = ',';
            first_one = 0;
            append(ids, d, (size_t)(digits + sizeof digits - d));
        }
    }
    append(ids, "]", 1);
}

static void generate(struct connection *c, int chat) {
    requests++;
    c->chat = chat;
    c->prompt_tokens = c->text.length / 4;
    long want = number(&c->text, "\"max_tokens\"", number(&c->text, "\"max_completion_tokens\"", 16));
    if (want < 1) want = 1;
    if (flag(&c->text, "\"stream\"")) {
        say(c, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n");
        c->usage = flag(&c->text, "\"include_usage\"");
        c->left = (int)want;
        c->sent = 0;
        c->busy = 1;
        running++;
        if (chat) piece(c, "\"role\":\"assistant\",\"content\":\"\"", "null");
        release(&c->text);
        token(c, now_us());
        return;
    }
    char body[768];
    const char *content = chat ? "\"message\":{\"role\":\"assistant\",\"content\":\"~ok\"}" : "\"text\":\"~ok\"";
    int n = snprintf(body, sizeof body, "{\"id\":\"%s-%lu\",\"object\":\"%s\",\"created\":1700000000,\"model\":\"%s\",\"choices\":"
        "[{\"index\":0,%s,\"logprobs\":null,\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":%zu,\"total_tokens\":%zu,"
        "\"completion_tokens\":%ld,\"prompt_tokens_details\":{\"cached_tokens\":0}}}", chat ? "chatcmpl" : "cmpl", requests,
        chat ? "chat.completion" : "text_completion", model, content, c->prompt_tokens, c->prompt_tokens + (size_t)want, want);
    tokens += (unsigned long)want;
    answer(c, "200 OK", "application/json", body, (size_t)n);
}

static void render(struct connection *c, int chat) {
    struct buffer out = {0};
    char head[256];
    int n = snprintf(head, sizeof head, "%s{\"request_id\":\"%s-%lu\",\"model\":\"%s\",\"features\":null,\"sampling_params\":{},"
        "\"token_ids\":", chat ? "" : "[", chat ? "chatcmpl" : "cmpl", requests, model);
    append(&out, head, (size_t)n);
    tokenise(&c->text, &out);
    append(&out, chat ? "}" : "}]", chat ? 1 : 2);
    answer(c, "200 OK", "application/json", out.data, out.length);
    release(&out);
}

static void tokenize(struct connection *c) {
    struct buffer out = {0};
    append(&out, "{\"max_model_len\":131072,\"token_strs\":null,\"tokens\":", 51);
    tokenise(&c->text, &out);
    size_t n = 0;
    for (size_t i = 0; i < out.length; i++) n += out.data[i] == ',';
    char tail[64];
    append(&out, tail, (size_t)snprintf(tail, sizeof tail, ",\"count\":%zu}", n - 2 + 1));
    answer(c, "200 OK", "application/json", out.data, out.length);
    release(&out);
}

static void act(struct connection *c) {
    const char *space = strchr(c->line, ' ');
    const char *path = space ? space + 1 : "";
    int post = strncmp(c->line, "POST ", 5) == 0;
    size_t n = strcspn(path, " ?");
    char body[1024];
#define IS(text) (n == sizeof(text) - 1 && memcmp(path, text, n) == 0)
    if (post && IS("/v1/chat/completions")) generate(c, 1);
    else if (post && IS("/v1/completions")) generate(c, 0);
    else if (post && IS("/v1/chat/completions/render")) render(c, 1);
    else if (post && IS("/v1/completions/render")) render(c, 0);
    else if (post && IS("/tokenize")) tokenize(c);
    else if (IS("/health") || IS("/ping") || IS("/health_generate") || IS("/")) answer(c, "200 OK", "application/json", "{}", 2);
    else if (IS("/v1/models") || IS("/models")) {
        int k = snprintf(body, sizeof body, "{\"object\":\"list\",\"data\":[{\"id\":\"%s\",\"object\":\"model\",\"created\":1700000000,"
            "\"owned_by\":\"vllm\",\"root\":\"%s\",\"parent\":null,\"max_model_len\":131072}]}", model, model);
        answer(c, "200 OK", "application/json", body, (size_t)k);
    } else if (IS("/get_server_info") || IS("/server_info") || IS("/get_model_info") || IS("/model_info")) {
        int k = snprintf(body, sizeof body, "{\"model_path\":\"%s\",\"served_model_name\":\"%s\",\"tokenizer_path\":\"%s\",\"is_generation\":true,"
            "\"version\":\"0.5.6\",\"tp_size\":1,\"dp_size\":1,\"page_size\":16,\"block_size\":16,\"max_running_requests\":4096,"
            "\"max_total_num_tokens\":4194304,\"model_type\":\"llama\",\"has_image_understanding\":false}", model, model, model);
        answer(c, "200 OK", "application/json", body, (size_t)k);
    } else if (IS("/kv_event_sources")) {
        int at = 0, live = 0, again = 0;
        while (at < count && ports[at] != c->port) at++;
        if (at == count || !events_at[at] || sscanf(events_at[at], "%d:%d", &live, &again) != 2) {
            answer(c, "404 Not Found", "application/json", "{\"detail\":\"Not Found\"}", 22);
            return;
        }
        int k = snprintf(body, sizeof body, "{\"0\":{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"topic\":\"\","
            "\"buffer_steps\":10000,\"endpoint\":\"tcp://127.0.0.1:%d\",\"replay_endpoint\":\"tcp://127.0.0.1:%d\"}}", live, again);
        answer(c, "200 OK", "application/json", body, (size_t)k);
    } else if (IS("/version")) answer(c, "200 OK", "application/json", "{\"version\":\"0.32.0\"}", 20);
    else if (IS("/metrics")) {
        int k = snprintf(body, sizeof body, "vllm:num_requests_running{model_name=\"%s\"} %lu\nvllm:num_requests_waiting{model_name=\"%s\"} 0\n"
            "vllm:kv_cache_usage_perc{model_name=\"%s\"} 0.1\nfake_requests_total %lu\nfake_tokens_total %lu\nfake_connections %lu\n",
            model, running / (unsigned long)count, model, model, requests, tokens, opened);
        answer(c, "200 OK", "text/plain; version=0.0.4", body, (size_t)k);
    } else if (IS("/control")) {
        const char *value = strstr(path, "interval_us=");
        if (value) interval = strtol(value + 12, NULL, 10);
        answer(c, "200 OK", "application/json", "{}", 2);
    } else answer(c, "404 Not Found", "application/json", "{\"detail\":\"Not Found\"}", 22);
}

/* Reads requests from what has come, and answers them one after the other. */
static void go_on(struct connection *c) {
    while (c->fd >= 0 && !c->busy && c->in.length) {
        if (!c->in_body) {
            char *end = memmem(c->in.data, c->in.length, "\r\n\r\n", 4);
            if (!end) {
                if (c->in.length > 65536) hang_up(c);
                return;
            }
            size_t n = (size_t)(end - c->in.data) + 4, line = (size_t)((char *)memchr(c->in.data, '\r', n) - c->in.data), value;
            if (line >= sizeof c->line) line = sizeof c->line - 1;
            memcpy(c->line, c->in.data, line);
            c->line[line] = 0;
            c->body = body_after(c->in.data, n, LENGTH);
            c->closing = says_close(c->in.data, n);
            const char *expect = field(c->in.data, n, "expect", &value);
            if (expect) say(c, "HTTP/1.1 100 Continue\r\n\r\n");
            consume(&c->in, n);
            c->text.length = 0;
            c->in_body = 1;
            if (expect) flush(c);
            if (c->fd < 0) return;
        }
        ssize_t used = read_body(&c->body, c->in.data, c->in.length, &c->text);
        if (used < 0) { hang_up(c); return; }
        consume(&c->in, (size_t)used);
        if (!c->body.done) return;
        c->in_body = 0;
        append(&c->text, "", 1); /* numbers are read up to a zero */
        c->text.length--;
        act(c);
        if (c->fd >= 0 && c->out.length) flush(c);
    }
}

static void receive(struct connection *c) {
    for (;;) {
        reserve(&c->in, 65536);
        ssize_t n = recv(c->fd, c->in.data + c->in.length, c->in.room - c->in.length, 0);
        if (n > 0) {
            c->in.length += (size_t)n;
            go_on(c);
            if (c->fd < 0) return;
            if ((size_t)n < 65536) break;
            continue;
        }
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) break;
        hang_up(c);
        return;
    }
    if (!c->in.length && c->left) release(&c->in);
}

static void greet(int listener, int port) {
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) return;
        int on = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct connection *c = calloc(1, sizeof *c);
        if (!c) die("calloc");
        c->fd = fd;
        c->port = port;
        opened++;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) < 0) die("epoll_ctl");
    }
}

static void listen_at(int port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&at, sizeof at) < 0) die("bind");
    if (listen(fd, 4096) < 0) die("listen");
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &listeners[count]};
    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
    ports[count] = port;
    listeners[count++] = fd;
}

int main(int argc, char **argv) {
    poller = epoll_create1(EPOLL_CLOEXEC);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (poller < 0 || timer < 0) die("epoll");
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--model")) model = argv[i + 1];
        else if (!strcmp(argv[i], "--interval-us")) interval = strtol(argv[i + 1], NULL, 10);
        else if (!strcmp(argv[i], "--events")) {
            int at = 0;
            for (char *one = strtok(argv[i + 1], ","); one && at < LISTENERS; one = strtok(NULL, ",")) events_at[at++] = one;
        } else if (!strcmp(argv[i], "--ports")) {
            for (char *port = strtok(argv[i + 1], ","); port && count < LISTENERS; port = strtok(NULL, ",")) listen_at(atoi(port));
        } else {
            fprintf(stderr, "engine: unknown option %s\n", argv[i]);
            return 2;
        }
    }
    if (!count) {
        fprintf(stderr, "engine: --ports is missing\n");
        return 2;
    }
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &timer};
    epoll_ctl(poller, EPOLL_CTL_ADD, timer, &event);
    signal(SIGPIPE, SIG_IGN);
    static struct epoll_event events[1024];
    for (;;) {
        int64_t set_for = 0;
        int wait = -1;
        if (first) {
            int64_t in = first->due - now_us();
            if (in <= 0) wait = 0;
            else if (first->due != set_for) {
                struct itimerspec when = {.it_value = {.tv_sec = first->due / 1000000, .tv_nsec = first->due % 1000000 * 1000}};
                timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
            }
        }
        int n = epoll_wait(poller, events, 1024, wait);
        if (n < 0 && errno != EINTR) die("epoll_wait");
        for (int i = 0; i < n; i++) {
            void *who = events[i].data.ptr;
            if (who == &timer) {
                uint64_t times;
                if (read(timer, &times, sizeof times) < 0 && errno != EAGAIN) die("timer");
            } else if (who >= (void *)listeners && who < (void *)(listeners + LISTENERS)) {
                int at = (int)((int *)who - listeners);
                greet(listeners[at], ports[at]);
            } else {
                struct connection *c = who;
                if (c->fd >= 0 && events[i].events & EPOLLOUT) flush(c);
                if (c->fd >= 0 && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(c);
            }
        }
        int64_t now = now_us();
        struct connection *stop = last; /* with no interval, each stream gets one token a turn */
        for (struct connection *c; (c = first) && c->due <= now;) {
            int was_last = c == stop;
            unqueue(c);
            token(c, now_us());
            if (c->fd >= 0 && !c->busy) go_on(c);
            if (was_last) break;
        }
        while (dead) {
            struct connection *c = dead;
            dead = c->next;
            free(c->in.data);
            free(c->out.data);
            free(c->text.data);
            free(c);
        }
    }
}
