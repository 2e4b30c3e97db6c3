# What scripts/pack_deps.sh and scripts/pack_gpu.sh share: which of this machine's shared libraries go along. Sourced after lib.sh, not run.

# Every system has these: the C library's parts.
of_glibc() {
  case $1 in
    libc.so.* | libm.so.* | libmvec.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libutil.so.* | libresolv.so.* | libanl.so.* | ld-linux*) return 0 ;;
  esac
  return 1
}

# Most systems have these, and often newer ones: programs of the system, as its Python, must not be given older ones.
of_base() {
  case $1 in libgcc_s.so.* | libstdc++.so.* | libgomp.so.* | libz.so.*) return 0 ;; esac
  return 1
}

# CUDA's are the other machine's own, with its driver.
of_cuda() {
  case $1 in libcu*.so* | libnv*.so* | libnccl*.so*) return 0 ;; esac
  return 1
}

# needed_libraries FILE...: the libraries that they need, all the way down, as "NAME PATH" lines; PATH is "missing" where the loader finds none.
needed_libraries() {
  ldd "$@" 2>/dev/null | awk '$2 == "=>" { print $1, ($3 ~ /^\// ? $3 : "missing") }' | sort -u
}

# copy_needed FOLDER FILE...: copies what these files need into FOLDER, but for glibc's, and for what the functions in $leave_out name. Never one
# that is there.
leave_out=()
copy_needed() {
  local folder=$1 name path test
  shift
  while read -r name path; do
    of_glibc "$name" && continue
    for test in "${leave_out[@]}"; do "$test" "$name" && continue 2; done
    if [ "$path" = missing ]; then
      warn "the library $name is needed, but not on this machine"
      continue
    fi
    [ -e "$folder/$name" ] || cp -L "$path" "$folder/$name"
  done < <(needed_libraries "$@")
}

is_elf() { [ "$(head -c 4 "$1" 2>/dev/null | tr '\0' ' ')" = $'\x7fELF' ]; }
