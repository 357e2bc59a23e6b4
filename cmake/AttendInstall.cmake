# The relocatable bundle: bin/, lib/ with the distribution's libraries that the binaries need, licences.
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/attend)
