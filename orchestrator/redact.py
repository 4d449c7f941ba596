"""What looks like a secret, and is not repeated. Pure."""

import re

# Tokens by how their issuers make them: Hugging Face, GitHub, GitLab, OpenAI and the like, AWS,
# Google, Slack, JSON web tokens; a private key; a password in a URL.
_SECRET = re.compile(
    r"\bhf_[A-Za-z0-9]{20,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}"
    r"|\bsk-[A-Za-z0-9_-]{20,}|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bAIza[\w-]{30,}|\bxox[abprs]-[\w-]{10,}"
    r"|\beyJ[\w-]{10,}\.[\w-]{10,}\.|-----BEGIN [A-Z ]*PRIVATE KEY|://[^/\s:@]+:[^/\s@]+@"
)
REDACTED = "(not shown)"


def is_secret(text: str) -> bool:
    """Return whether ``text`` holds what looks like a secret.

    >>> is_secret("http://alice:pass@proxy:3128"), is_secret("http://proxy:3128")
    (True, False)
    """
    return bool(_SECRET.search(text))


def redacted(text: str) -> str:
    """Return ``text``, or only that it is not shown."""
    return REDACTED if is_secret(text) else text
