"""What the broker says it is: the nsqd it behaves as, and that it is not that one."""

VERSION = "1.3.0+nsqflow"  # semver takes it for the same version as 1.3.0
