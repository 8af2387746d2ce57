#!/bin/bash
# All steps of a release but the upload: checks version and CHANGELOG, runs .ci/run, installs the wheel
# and tries it, leaves sdist and wheel in build/wheel. usage: release.sh [--dry-run], which does the first of these alone
source "$(dirname "$0")/common.sh"
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' mlcc/_version.py)
[ -n "$version" ] || die "mlcc/_version.py: no version"
[ -z "$(git status --porcelain)" ] || die "the tree has changes that are not committed"
grep -q "^## $version" CHANGELOG.md || die "CHANGELOG.md: no heading \"## $version\"; move what is under \"## Unreleased\" there"
! git rev-parse -q --verify "refs/tags/v$version" >/dev/null || die "v$version is a tag already"
[ "${1:-}" = --dry-run ] && { say "$version can be released"; exit; }
.ci/run
scripts/check_install.sh
say "$version: what is to be uploaded"
ls -l build/wheel/*.tar.gz build/wheel/*.whl
echo "then: git tag -a v$version -m 'mlcc $version'"
