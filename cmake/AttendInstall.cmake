# What `cmake --install` lays down.
#   --component bundle   the relocatable bundle that images and GPU nodes run: bin/attend-server, bin/attend,
#                        lib/attend/ with the distribution's libraries that they need (all but glibc's and the
#                        compiler's), the licences of all. Runs from any folder.
#   (no component)       that, and the client library for developers.
set(attend_bundle_libdir lib/attend)

set(programs)
foreach(program attend-server attend)
  if(TARGET ${program})
    list(APPEND programs ${program})
    # DT_RPATH rather than DT_RUNPATH: it holds for the libraries of the libraries too.
    set_target_properties(${program} PROPERTIES INSTALL_RPATH "$ORIGIN/../${attend_bundle_libdir}")
    target_link_options(${program} PRIVATE -Wl,--disable-new-dtags)
    target_link_libraries(${program} PRIVATE $<TARGET_NAME_IF_EXISTS:attend_tsan>)
  endif()
endforeach()
if(programs)
  install(TARGETS ${programs} RUNTIME DESTINATION bin COMPONENT bundle)
  set(program_files)
  foreach(program ${programs})
    list(APPEND program_files $<TARGET_FILE:${program}>)
  endforeach()
  set(attend_bundle_programs "${program_files}")
  # A library that a driver brings (libcuda, libnvidia-ml) is loaded at run time and never bundled.
  install(CODE "
    file(GET_RUNTIME_DEPENDENCIES
      EXECUTABLES ${attend_bundle_programs}
      RESOLVED_DEPENDENCIES_VAR found UNRESOLVED_DEPENDENCIES_VAR missing
      PRE_EXCLUDE_REGEXES
        \"^ld-linux\" \"^lib(c|m|dl|rt|pthread|resolv|util|anl|nss_[a-z]+)\\\\.so\" \"^libstdc\\\\+\\\\+\"
        \"^libgcc_s\" \"^lib(cuda|nvidia-ml)\\\\.so\")
    if(missing)
      message(FATAL_ERROR \"bundle: not found: \${missing}\")
    endif()
    set(terms \$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share/doc/attend/licences)
    foreach(library \${found})
      file(INSTALL \${library} DESTINATION \${CMAKE_INSTALL_PREFIX}/${attend_bundle_libdir} FOLLOW_SYMLINK_CHAIN)
      # The terms under which its package gives it.
      file(REAL_PATH \${library} real)
      get_filename_component(name \${real} NAME)
      execute_process(COMMAND dpkg-query --search */\${name} OUTPUT_VARIABLE owner ERROR_QUIET)
      string(REGEX MATCH \"^[^:, ]+\" package \"\${owner}\")
      if(package AND EXISTS /usr/share/doc/\${package}/copyright)
        file(MAKE_DIRECTORY \${terms})
        file(COPY_FILE /usr/share/doc/\${package}/copyright \${terms}/\${package} ONLY_IF_DIFFERENT)
      else()
        message(WARNING \"bundle: the licence of \${name} is not on this machine\")
      endif()
    endforeach()" COMPONENT bundle)
endif()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION share/doc/attend COMPONENT bundle)
