"""The sockets: three frames live, replays as engines answer them."""

import struct
import threading

import pytest
import zmq

from kvatlas.sim.server import Publisher

from .conftest import END, Subscriber, ask, number, replay


def seq8(value: int) -> bytes:
    return struct.pack(">Q", value)


def filled(count: int, **options: object) -> Publisher:
    publisher = Publisher(topic=b"kv", **options)  # type: ignore[arg-type]
    for i in range(count):
        assert publisher.publish(b"payload %d" % i) == i
    return publisher


def test_live_messages_are_topic_number_payload() -> None:
    with Publisher(topic=b"kv@x") as publisher, Subscriber(publisher.endpoint) as subscriber:
        first = subscriber.join(lambda: publisher.publish(b"hello"))
        assert first[0] == b"kv@x"
        assert first[2] == b"hello"
        last = publisher.publish(b"again")
        assert subscriber.until(last)[-1] == [b"kv@x", seq8(last), b"again"]


def test_a_replay_has_all_from_the_start_and_an_end_marker() -> None:
    with filled(5) as publisher:
        answer = ask(publisher.replay_endpoint, [b"", seq8(2)])
        assert answer == [*([b"", b"kv", seq8(i), b"payload %d" % i] for i in range(2, 5)), [b"", b"", END, b""]]


def test_an_old_reply_has_no_topic_frame() -> None:
    with filled(2, old_replies=True) as publisher:
        answer = ask(publisher.replay_endpoint, [b"", seq8(1)])
        assert answer == [[b"", seq8(1), b"payload 1"], [b"", END, b""]]


def test_a_replay_from_before_what_is_kept_silently_begins_later() -> None:
    with filled(10, buffer_steps=4) as publisher:
        assert [number(frames) for frames in replay(publisher.replay_endpoint)] == [6, 7, 8, 9]


@pytest.mark.parametrize("published", [0, 3])
def test_a_replay_from_beyond_the_end_is_just_the_marker(published: int) -> None:
    with filled(published) as publisher:
        assert replay(publisher.replay_endpoint, published) == []
        assert replay(publisher.replay_endpoint, 2**63) == []


@pytest.mark.parametrize("request_", [[seq8(0)], [b"", b"", seq8(0)]])
def test_a_request_of_other_frames_gets_no_answer(request_: list[bytes]) -> None:
    with filled(1) as publisher:
        assert ask(publisher.replay_endpoint, request_, seconds=0.3) is None
        assert len(replay(publisher.replay_endpoint)) == 1


def test_a_req_socket_gets_the_first_reply() -> None:
    with filled(3) as publisher:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        socket = context.socket(zmq.REQ)
        socket.connect(publisher.replay_endpoint or "")
        socket.send(seq8(1))
        assert socket.recv_multipart() == [b"kv", seq8(1), b"payload 1"]
        context.destroy(linger=0)


def test_no_replay_socket() -> None:
    with Publisher(replay_endpoint=None) as publisher:
        assert publisher.replay_endpoint is None
        assert publisher.publish(b"x") == 0


def test_a_reader_is_waited_for() -> None:
    with Publisher() as publisher:
        with pytest.raises(TimeoutError, match=f"no reader of {publisher.endpoint} came in 0 s"):
            publisher.wait_for_reader(0)
        with Subscriber(publisher.endpoint) as one:
            publisher.wait_for_reader()
            with Subscriber(publisher.endpoint) as other:
                publisher.wait_for_reader()
                publisher.publish(b"first")
                assert [(each.receive() or [])[-1] for each in (one, other)] == [b"first", b"first"]


def test_a_publisher_that_connects() -> None:
    with zmq.Context() as context, context.socket(zmq.SUB) as reader:
        port = reader.bind_to_random_port("tcp://127.0.0.1")
        reader.subscribe(b"")
        with Publisher(f"tcp://127.0.0.1:{port}", connect=True) as publisher:
            waiting = threading.Thread(target=publisher.wait_for_reader)
            waiting.start()
            while waiting.is_alive():
                reader.poll(5)  # only now it subscribes
            publisher.publish(b"first")
            assert reader.recv_multipart() == [b"", seq8(0), b"first"]
            assert [number(frames) for frames in replay(publisher.replay_endpoint)] == [0]


def test_batches_that_are_lost_or_have_a_number_of_their_own() -> None:
    with Publisher() as publisher, Subscriber(publisher.endpoint) as subscriber:
        publisher.wait_for_reader()
        assert publisher.publish(b"lost", live=False) == 0
        publisher.send(7, b"strange")
        assert publisher.publish(b"next") == 1
        assert [number(frames) for frames in subscriber.until(1)] == [7, 1]
        assert [frames[-1] for frames in replay(publisher.replay_endpoint)] == [b"lost", b"next"]


@pytest.mark.parametrize("first", [0, 100])
def test_a_restart_keeps_nothing(first: int) -> None:
    with filled(3) as publisher:
        publisher.restart(first)
        assert publisher.publish(b"new") == first
        assert [(number(frames), frames[-1]) for frames in replay(publisher.replay_endpoint)] == [(first, b"new")]


def test_a_taken_address_is_an_error() -> None:
    with Publisher() as publisher, pytest.raises(zmq.ZMQError):
        Publisher(endpoint="tcp://127.0.0.1:*", replay_endpoint=publisher.endpoint)


def test_replays_while_publishing_from_several_threads() -> None:
    def flood(publisher: Publisher) -> None:
        for _ in range(5_000):
            publisher.publish(b"x" * 200)

    with Publisher(buffer_steps=20_000) as publisher:
        threads = [threading.Thread(target=flood, args=(publisher,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        during = replay(publisher.replay_endpoint)
        for thread in threads:
            thread.join()
        assert [number(frames) for frames in during] == list(range(len(during)))
        assert [number(frames) for frames in replay(publisher.replay_endpoint)] == list(range(20_000))
