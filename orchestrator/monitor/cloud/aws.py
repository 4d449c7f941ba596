"""AWS: spot interruption notices and rebalance recommendations, by IMDSv2.

A notice comes two minutes before a spot instance is stopped or terminated (hibernation begins at
once), "on a best effort basis"; AWS recommends to ask every 5 seconds. Without one the item is not
there (404). Version 1 of the service, without a token, is never used. In a container behind a
bridge the token's answer needs a hop limit of 2 on the instance, or the request times out.

Sources:
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
    https://repost.aws/knowledge-center/ec2-linux-metadata-retrieval (the error codes)
"""

import json
import time
from collections.abc import Callable

from orchestrator.monitor.cloud.metadata import Answer, Metadata, MetadataError, failure
from orchestrator.monitor.cloud.reclaim import Reclaim, iso_time

_TOKEN = "/latest/api/token"
_ACTION = "/latest/meta-data/spot/instance-action"
_REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
_TTL_S = 21600  # six hours, the longest there is
_RENEW_S = 300.0


class ImdsSession:
    """A session with the instance metadata service, version 2."""

    def __init__(self, service: Metadata, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._service = service
        self._clock = clock
        self._token = ""
        self._renew_at = float("-inf")

    def get(self, path: str) -> str | None:
        """Return the item at ``path``, None if there is none.

        Raises:
            MetadataError: No answer of use.
        """
        answer = self._ask(path)
        if answer.status == 401:  # the token is stale, whatever its time says
            self._renew_at = float("-inf")
            answer = self._ask(path)
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise failure(path, answer)
        return answer.text

    def _ask(self, path: str) -> Answer:
        if self._clock() >= self._renew_at:
            self._renew()
        return self._service.ask(path, {"X-aws-ec2-metadata-token": self._token})

    def _renew(self) -> None:
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TTL_S)}
        answer = self._service.ask(_TOKEN, headers, method="PUT")
        if answer.status != 200 or not answer.text.isascii() or not answer.text.isprintable():
            raise failure(_TOKEN, answer)
        self._token = answer.text.strip()
        # Never later than half of its life, for clocks and for short ones.
        given_s = _seconds(answer.headers.get("x-aws-ec2-metadata-token-ttl-seconds"))
        self._renew_at = self._clock() + max(given_s - _RENEW_S, given_s / 2)


class AwsSpot:
    """The interruption notice of a spot instance."""

    every_s = 5.0

    def __init__(self, session: ImdsSession) -> None:
        self._session = session

    def look(self) -> list[Reclaim]:
        """Return the interruption that is announced, if there is one."""
        text = self._session.get(_ACTION)
        return [] if text is None else [instance_action(text)]


class AwsRebalance:
    """The recommendation to move: a higher risk of an interruption, no more."""

    every_s = 30.0

    def __init__(self, session: ImdsSession) -> None:
        self._session = session

    def look(self) -> list[Reclaim]:
        """Return the recommendation, if there is one."""
        text = self._session.get(_REBALANCE)
        return [] if text is None else [rebalance(text)]


def instance_action(text: str) -> Reclaim:
    """Return the interruption that the item spot/instance-action announces.

    >>> instance_action('{"action": "stop", "time": "2017-09-18T08:22:00Z"}').ends_at
    1505722920.0

    Raises:
        MetadataError: It announces none.
    """
    data = _object(_ACTION, text)
    action, at = data.get("action"), data.get("time")
    if not isinstance(action, str) or action not in ("hibernate", "stop", "terminate"):
        raise MetadataError(f"{_ACTION}: unknown action in {text[:100]!r}")
    what = f"AWS will {action} this spot instance at {at}"
    return Reclaim(word="AWS-SPOT", what=what, ends_at=iso_time(at))


def rebalance(text: str) -> Reclaim:
    """Return the recommendation that the item events/recommendations/rebalance gives.

    Raises:
        MetadataError: It gives none.
    """
    data = _object(_REBALANCE, text)
    if iso_time(data.get("noticeTime")) is None:
        raise MetadataError(f"{_REBALANCE}: no noticeTime in {text[:100]!r}")
    what = f"AWS recommends to leave this spot instance (rebalance, {data['noticeTime']})"
    return Reclaim(word="AWS-REBALANCE", what=what, vague=True)


def _object(path: str, text: str) -> dict[str, object]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise MetadataError(f"{path}: no JSON object: {text[:100]!r}")
    return data


def _seconds(text: str | None) -> float:
    return float(text) if text and text.isascii() and text.isdigit() else float(_TTL_S)
