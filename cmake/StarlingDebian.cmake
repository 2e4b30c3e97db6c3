# Run by CPack on what it is about to pack: what Debian wants of a package beside the files of an
# installation. Does nothing for other generators.
if(NOT CPACK_GENERATOR STREQUAL "DEB")
  return()
endif()
set(share ${CPACK_TEMPORARY_DIRECTORY}/usr/share)
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
file(REMOVE ${share}/doc/starling/LICENSE)
file(WRITE ${share}/doc/starling/copyright
"Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/

Files: *
Copyright: 2026 The Starling authors
License: Apache-2.0
 On Debian systems the full text is in /usr/share/common-licenses/Apache-2.0.
")
file(WRITE ${share}/doc/starling/changelog
"starling (${CPACK_PACKAGE_VERSION}) unstable; urgency=medium

  * /usr/share/doc/starling/CHANGELOG.md says what is new.

 -- ${CPACK_PACKAGE_CONTACT}  ${date}
")
# One package holds programs, libraries and headers, since plug-ins are compiled against the very
# version that opens them; and this is no package of Debian's, whose maintainer would have a host.
file(WRITE ${share}/lintian/overrides/starling
"starling: bogus-mail-host
starling: bogus-mail-host-in-debian-changelog
starling: link-to-shared-library-in-wrong-package
starling: maintscript-calls-ldconfig
starling: no-shlibs
starling: package-name-doesnt-match-sonames
")
file(GLOB pages ${share}/man/man1/*.1)
execute_process(COMMAND gzip -9nf ${pages} ${share}/doc/starling/changelog COMMAND_ERROR_IS_FATAL ANY)
