/* What the fake engine and the load client share: growing buffers, the clock, and reading an HTTP/1.1 message as it comes. */
#ifndef KVATLAS_BENCH_COMMON_H
#define KVATLAS_BENCH_COMMON_H

#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

static inline void die(const char *what) {
    perror(what);
    exit(2);
}

/* Microseconds of the machine's monotonic clock, the same for all processes on it. */
static inline int64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

struct buffer {
    char *data;
    size_t length, room;
};

static inline void reserve(struct buffer *b, size_t more) {
    if (b->length + more <= b->room) return;
    size_t room = b->room ? b->room : 512;
    while (room < b->length + more) room *= 2;
    b->data = realloc(b->data, room);
    if (!b->data) die("realloc");
    b->room = room;
}

static inline void append(struct buffer *b, const char *data, size_t length) {
    reserve(b, length);
    memcpy(b->data + b->length, data, length);
    b->length += length;
}

static inline void consume(struct buffer *b, size_t length) {
    b->length -= length;
    if (b->length) memmove(b->data, b->data + length, b->length);
}

/* Ten thousand idle streams must not keep the memory of their largest moment. */
static inline void release(struct buffer *b) {
    free(b->data);
    *b = (struct buffer){0};
}

/* How the body of a message ends. */
enum framing { LENGTH, CHUNKED, UNTIL_CLOSE };

struct body {
    enum framing framing;
    size_t left;     /* bytes left of the body, or of the chunk */
    int in_chunk;    /* CHUNKED: within a chunk's data */
    int last_chunk;  /* CHUNKED: the chunk of length 0 has come, its trailer has not ended */
    int done;
};

/* Appends what `data` brings of the body to `out`. Returns the bytes used, fewer than `length` if a line of the framing is
 * not whole yet, or if the body has ended; -1 if the framing is wrong. */
static inline ssize_t read_body(struct body *body, const char *data, size_t length, struct buffer *out) {
    size_t used = 0;
    while (!body->done && used < length) {
        if (body->framing != CHUNKED || body->in_chunk) {
            size_t n = length - used;
            if (body->framing != UNTIL_CLOSE && n > body->left) n = body->left;
            append(out, data + used, n);
            used += n;
            if (body->framing == UNTIL_CLOSE) continue;
            body->left -= n;
            if (body->left) continue;
            if (body->framing == LENGTH) body->done = 1;
            body->in_chunk = 0;
            continue;
        }
        const char *line = data + used, *end = memchr(line, '\n', length - used);
        if (!end) break;
        used = (size_t)(end - data) + 1;
        size_t n = (size_t)(end - line);
        if (n && line[n - 1] == '\r') n--;
        if (!n) { /* the end of a chunk's data, or of the trailer */
            if (body->last_chunk) body->done = 1;
            continue;
        }
        if (body->last_chunk) continue; /* a field of the trailer */
        char *rest;
        body->left = strtoul(line, &rest, 16);
        if (rest == line) return -1;
        if (body->left) body->in_chunk = 1;
        else body->last_chunk = 1;
    }
    return (ssize_t)used;
}

/* The value of a field in a head, without white space at its ends; NULL if it is not there. */
static inline const char *field(const char *head, size_t length, const char *name, size_t *value_length) {
    size_t n = strlen(name);
    const char *end = head + length, *line = memchr(head, '\n', length);
    for (; line && line + 1 < end; line = memchr(line, '\n', (size_t)(end - line))) {
        line++;
        if ((size_t)(end - line) <= n || line[n] != ':' || strncasecmp(line, name, n) != 0) continue;
        const char *value = line + n + 1, *stop = memchr(value, '\n', (size_t)(end - value));
        if (!stop) stop = end;
        while (value < stop && (*value == ' ' || *value == '\t')) value++;
        while (stop > value && (stop[-1] == '\r' || stop[-1] == ' ' || stop[-1] == '\t')) stop--;
        *value_length = (size_t)(stop - value);
        return value;
    }
    return NULL;
}

/* How the body after this head ends; `absent` if nothing says. */
static inline struct body body_after(const char *head, size_t length, enum framing absent) {
    struct body body = {.framing = absent};
    size_t n;
    const char *value = field(head, length, "transfer-encoding", &n);
    if (value && n >= 7 && strncasecmp(value + n - 7, "chunked", 7) == 0) {
        body.framing = CHUNKED;
        return body;
    }
    value = field(head, length, "content-length", &n);
    if (value) {
        body.framing = LENGTH;
        body.left = strtoul(value, NULL, 10);
    }
    if (body.framing == LENGTH && body.left == 0) body.done = 1;
    return body;
}

static inline int says_close(const char *head, size_t length) {
    size_t n;
    const char *value = field(head, length, "connection", &n);
    return value && n == 5 && strncasecmp(value, "close", 5) == 0;
}

#endif
