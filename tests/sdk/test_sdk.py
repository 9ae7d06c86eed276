"""The published SDK against a running server: a client that knows nothing else must work unchanged.

    python tests/sdk/test_sdk.py target/debug/synod

Starts the given binary on the fixture members, with keys and a queue of one request where a test needs them, and ends
with status 1 at the first thing that is not as the SDK expects it.
"""
import contextlib
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import typesafe_sdk as sdk

MEMBERS = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "members"
KEY, LIMITED_KEY = "sdk-test-key", "sdk-test-limited-key"
START_LIMIT_S = 120
# The SDK waits 10 s and retries twice by default: one attempt, long enough for a busy machine, shows what is answered.
PATIENT = {"timeout": 120.0, "retry": sdk.RetryPolicy(max_retries=0)}


def member_table(name, aliases):
    manifest = (MEMBERS / name / "MODEL_MANIFEST.json").read_bytes()
    return f"""
[[member]]
name = "{name}"
path = "{MEMBERS / name}"
anchor = "sha256:{hashlib.sha256(manifest).hexdigest()}"
profile = "fp32"
devices = ["cpu:*"]
aliases = {json.dumps(aliases)}
"""


def key_table(name, key, models):
    return f"""
[[key]]
name = "{name}"
sha256 = "{hashlib.sha256(key.encode()).hexdigest()}"
models = {json.dumps(models)}
"""


@contextlib.contextmanager
def serving(synod, *, more=""):
    """A server of two members, `tiny-08b` also as `jev-latest`; its base URL."""
    deployment = '[server]\nbind = "127.0.0.1:0"\n' + more
    deployment += key_table("sdk", KEY, ["tiny-08b", "tiny-router"]) + key_table("limited", LIMITED_KEY, ["tiny-router"])
    deployment += member_table("tiny-08b", ["jev-latest"]) + member_table("tiny-router", [])
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder, "deployment.toml")
        config.write_text(deployment)
        log = pathlib.Path(folder, "log")
        with log.open("w") as stderr:
            process = subprocess.Popen([synod, "serve", "--config", str(config)], stdout=subprocess.PIPE, stderr=stderr, text=True)
        try:
            url = announced(process, log)
            wait_until_ready(url, process, log)
            yield url
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def announced(process, log):
    for line in process.stdout:
        if "listening on http://" in line:
            # Nobody reads the rest; a thread keeps the pipe empty.
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return "http://" + line.split("listening on http://")[1].strip().rstrip("/")
    raise SystemExit(f"{process.args} ended without an address:\n{log.read_text()}")


def wait_until_ready(url, process, log):
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url + "/health/ready", timeout=5):
                return
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"not ready:\n{log.read_text()}")


STATE = {
    "request": "Hi, I'm Tom Baker (tom.baker@example.com). Can I pay invoice INV-20871 by card?",
    "document": "Invoices can be paid by card or by bank transfer within 14 days.",
}
CHOICE = sdk.Choice(instructions="What is it about?", criteria={"billing": "payments or invoices", "technical": None})
NOUL = sdk.Noul(instructions="Is it a question?", criteria={"true": "It asks something."})
SCORE = sdk.Score(instructions="How urgent is it?", criteria=["Routine", "Soon", "At once"])
SET = {"type": "set", "instructions": "Which topics?", "criteria": {"payment": None, "refund": None}}
SPAN = {"type": "span", "instructions": "Mark people.", "criteria": {"person": None}, "over": "request"}


def answers_have_the_sdks_types(url):
    with sdk.TypeSafeClient(api_key=KEY, base_url=url, model="tiny-08b", **PATIENT) as client:
        result = client.system_one(state=STATE, questions={"topic": CHOICE, "asks": NOUL, "urgency": SCORE})
    assert result.model == "tiny-08b" and result.request_id, result
    assert result.usage.input_tokens > 0 and result.usage.output_tokens == 0, result.usage
    assert list(result.answers) == ["topic", "asks", "urgency"], result.answers
    topic = result.choices["topic"]
    assert topic.choice in {"billing", "technical"} and 0 <= topic.confidence <= 1, topic
    assert list(topic.probabilities) == ["billing", "technical"], topic
    assert abs(sum(topic.probabilities.values()) - 1) < 1e-9, topic
    assert topic.choice == max(topic.probabilities, key=topic.probabilities.get), topic
    assert 0 <= result.nouls["asks"].noul <= 1, result
    urgency = result.scores["urgency"]
    assert urgency.legend == {0: "Routine", 1: "Soon", 2: "At once"}, urgency
    expected = sum(level * p for level, p in urgency.probabilities.items())
    assert abs(urgency.score - expected) < 1e-9 and 0 <= urgency.confidence <= 1, urgency


def sets_and_spans_are_in_the_raw_response(url):
    with sdk.TypeSafeClient(api_key=KEY, base_url=url, model="tiny-08b", **PATIENT) as client:
        result = client.system_one(
            state=STATE, questions={"topics": SET, "people": SPAN, "pii": {"type": "span", "preset": "pii"}}
        )
    # One noul per label, and one per span question: types that the SDK knows.
    assert list(result.nouls) == ["topics.payment", "topics.refund", "people", "pii"], result.answers
    raw = json.loads(result.raw_http_response.content)
    assert list(raw) == ["model", "answers", "usage", "spans", "span_heads", "sets", "thresholds"], raw
    assert set(raw["sets"]["topics"]) == {"selected", "probabilities"}, raw
    for label, probability in raw["sets"]["topics"]["probabilities"].items():
        assert probability == result.nouls[f"topics.{label}"].noul, raw
    assert list(raw["spans"]) == ["people", "pii"], raw
    for question, text in (("people", STATE["request"]), ("pii", STATE["request"])):
        for span in raw["spans"][question]:
            assert text[span["start"] : span["end"]] == span["text"], (question, span)


def an_unconfigured_client_finds_its_model(url):
    os.environ["TYPESAFE_API_KEY"], os.environ["TYPESAFE_BASE_URL"] = KEY, url
    try:
        with sdk.TypeSafeClient() as client:
            result = client.system_one(state="It is late.", questions={"late": sdk.Noul(instructions="Is it late?")}, **PATIENT)
    finally:
        del os.environ["TYPESAFE_API_KEY"], os.environ["TYPESAFE_BASE_URL"]
    assert result.model == "tiny-08b", result
    assert 0 <= result.nouls["late"].noul <= 1, result


def large_bodies_arrive_compressed(url):
    with sdk.TypeSafeClient(api_key=KEY, base_url=url, model="tiny-08b", compression="zstd", **PATIENT) as client:
        state = "The shop is open until nine. " * 100
        packed = client.system_one(state=state, questions={"open": NOUL})
    with sdk.TypeSafeClient(api_key=KEY, base_url=url, model="tiny-08b", compression=False, **PATIENT) as client:
        plain = client.system_one(state=state, questions={"open": NOUL})
    assert packed.raw_http_response.request.headers["content-encoding"] == "zstd"
    assert packed.raw_http_response.content == plain.raw_http_response.content


def models_are_listed(url):
    with sdk.TypeSafeClient(api_key=KEY, base_url=url, **PATIENT) as client:
        models = client.models.list().models
    assert sorted(model.name for model in models) == ["jev-latest", "tiny-08b", "tiny-router"], models


def raises(error, status, client, *, message, **request):
    """The SDK's typed error for a request, its message among the server's words."""
    request = {"state": "It is late.", "questions": {"late": sdk.Noul(instructions="Is it late?")}, **request}
    try:
        result = client.system_one(**request)
    except sdk.TypeSafeAPIError as found:
        assert type(found) is error and found.status == status and found.request_id, repr(found)
        assert message in str(found), repr(found)
        return found
    raise AssertionError(f"expected {error.__name__}, found {result}")


def errors_have_the_sdks_types(url):
    clients = {key: sdk.TypeSafeClient(api_key=key, base_url=url, **PATIENT) for key in (KEY, LIMITED_KEY, "unknown")}
    raises(sdk.TypeSafeAuthenticationError, 401, clients["unknown"], message="key")
    raises(sdk.TypeSafePermissionDeniedError, 403, clients[LIMITED_KEY], message="tiny-08b", model="tiny-08b")
    raises(sdk.TypeSafeNotFoundError, 404, clients[KEY], message="tiny-router", model="vela-900b")
    one_option = {"topic": sdk.Choice(instructions="What?", criteria={"billing": None})}
    raises(
        sdk.TypeSafeUnprocessableEntityError, 422, clients[KEY],
        message="questions.topic.criteria: needs at least 2", questions=one_option,
    )
    raises(sdk.TypeSafeUnprocessableEntityError, 422, clients[KEY], message="state: the state is blank", state=" ")
    raises(
        sdk.TypeSafeUnprocessableEntityError, 422, clients[KEY],
        message="questions.late.instructions: is required", questions={"late": sdk.Noul(criteria={"true": "late"})},
    )
    for client in clients.values():
        client.close()


def a_full_queue_is_a_rate_limit(url):
    """Many long requests at once on a queue of one: each is answered, or refused with the time to wait."""
    outcomes = []
    start = threading.Barrier(12)

    def ask():
        with sdk.TypeSafeClient(api_key=KEY, base_url=url, model="tiny-08b", **PATIENT) as client:
            start.wait()
            try:
                client.system_one(state="Tom Baker met Ana Ruiz in Leeds. " * 200, questions={"people": {**SPAN, "over": "request"}})
                outcomes.append(None)
            except sdk.TypeSafeError as error:
                outcomes.append(error)

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    errors = [error for error in outcomes if error is not None]
    assert len(outcomes) == 12 and 0 < len(errors) < 12, outcomes
    for error in errors:
        assert type(error) is sdk.TypeSafeRateLimitError and error.retry_after_ms is not None, repr(error)


def main():
    synod = str(pathlib.Path(sys.argv[1]).resolve())
    with serving(synod) as url:
        for test in (
            answers_have_the_sdks_types,
            sets_and_spans_are_in_the_raw_response,
            an_unconfigured_client_finds_its_model,
            large_bodies_arrive_compressed,
            models_are_listed,
            errors_have_the_sdks_types,
        ):
            test(url)
            print(f"sdk: {test.__name__} ok")
    with serving(synod, more="[queue]\nmax_requests = 1\n") as url:
        a_full_queue_is_a_rate_limit(url)
        print(f"sdk: {a_full_queue_is_a_rate_limit.__name__} ok")
    print(f"typesafe-sdk {sdk.__version__}: all ok")


if __name__ == "__main__":
    main()
